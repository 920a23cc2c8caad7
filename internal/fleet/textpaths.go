package fleet

import (
	"context"
	"sync/atomic"

	"github.com/sluice-router/sluice/internal/textmodel"
)

// texts is what the fleet knows of how text becomes tokens, workers apart.
type texts struct {
	pools atomic.Pointer[map[string]PoolText] // replaced with Fleet.mu held, never changed

	store         *textmodel.Store // of the files that engines give
	reads, checks checkLimiter
	selfCheck     func(context.Context, *textmodel.Model, textmodel.Asker) error

	// guarded by Fleet.mu
	paths map[string]*pathText // the files that are configured, by path
}

// pathText is the model of a configured path.
type pathText struct {
	// guarded by Fleet.mu
	loaded bool
	model  *textmodel.Model
	err    error
}

func newTexts() *texts {
	t := &texts{
		store: textmodel.NewStore(maxTexts), paths: map[string]*pathText{},
		reads: checkLimiter{max: maxTextReads}, checks: checkLimiter{max: maxTextChecks}, selfCheck: textmodel.SelfCheck,
	}
	t.pools.Store(&map[string]PoolText{})
	return t
}

// loadPathsLocked begins to read the files of configured paths.
func (f *Fleet) loadPathsLocked() {
	for _, p := range f.cfg.Text.TokenizerPaths {
		path := p.Path()
		if f.texts.paths[path] == nil {
			f.texts.paths[path] = &pathText{}
			f.texts.reads.start(false, func() { f.loadPath(path) })
		}
	}
}

func (f *Fleet) loadPath(path string) {
	m, err := textmodel.FromDir(path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	*f.texts.paths[path] = pathText{loaded: true, model: m, err: err}
	if err != nil {
		f.log.Error("cannot use the files of tokenizer_path: requests for their models that need tokens are refused", "path", path, "why", err)
	} else {
		f.log.Info("read the files of tokenizer_path", "path", path, "digest", m.Digest(), "vocabulary", m.VocabSize())
	}
	for _, w := range f.workers {
		if f.textPathLocked(w) == path {
			f.followTextLocked(w, false, false)
		}
	}
	f.publishTextsLocked()
}

// textPathLocked is the configured path of the files of w's model, empty for none.
func (f *Fleet) textPathLocked(w *Worker) string {
	name := ""
	if names := w.ownNames(); len(names) > 0 {
		name = names[0]
	}
	return f.cfg.Text.TokenizerPath(name)
}

// pathTextLocked is what is known of a pool's text without its workers.
func (f *Fleet) pathTextLocked(pool string) PoolText {
	path := f.cfg.Text.TokenizerPath(pool)
	if path == "" {
		return PoolText{}
	}
	switch p := f.texts.paths[path]; {
	case p == nil || !p.loaded:
		return PoolText{Err: errTextLoading, Loading: true}
	default:
		return PoolText{Model: p.model, Err: p.err}
	}
}
