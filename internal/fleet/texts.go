package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/textmodel"
)

// PoolText is how the text of a pool's requests becomes tokens.
type PoolText struct {
	// Model makes tokens of text. It is nil while none is known: of workers that take token
	// ids Err is why then, and of others it may also be that nobody said where its files are.
	Model *textmodel.Model
	Err   error
	// Loading: Err is that the files are being read. It may pass in seconds.
	Loading bool
	// IDsOnly: Err will last. Prompts that are token ids can be answered with token ids.
	IDsOnly bool
	// Mismatch is set where an engine makes other tokens of a text than its files do: only
	// prompts that are token ids can be served. Model refuses chat then, or is nil where the
	// engine's tokens have other texts than in the files too.
	Mismatch error
	// TakesTokens: the pool's workers take token ids, so that a request without them cannot
	// be served.
	TakesTokens bool
	// Engine is what an engine of the pool tells of its model; nil: nothing.
	Engine *EngineText
	// Context is how many tokens a prompt and its answer have together at most, by what the
	// workers and the model's files say; 0: neither says it.
	Context int64
}

// EngineText is what an engine that takes token ids tells of its model. Immutable.
type EngineText struct {
	Vocab int // a number that all its ids are below; 0: not told
	EOS   []uint32
	// Sampling is what it does behind HTTP where a client makes no choice; nil: not told.
	Sampling *textmodel.Sampling
}

func newEngineText(t *engine.TokenFacts) *EngineText {
	e := &EngineText{Vocab: int(t.Vocab), EOS: t.EOS}
	if t.Sampling != "" {
		if s, err := textmodel.ReadSampling([]byte(t.Sampling)); err == nil {
			e.Sampling = &s
		}
	}
	return e
}

// errTextLoading is PoolText.Err while nothing has failed.
var errTextLoading = errors.New("the files of the model's tokenizer are being read")

// errNoText is PoolText.Err of engines that do not give their files.
var errNoText = errors.New("its engine does not give the files of its tokenizer; set tokenizer_path")

// unsupportedFiles is PoolText.Err of engines with a tokenizer of an unknown kind.
type unsupportedFiles struct {
	digest string // of its files
	err    error
}

func (e *unsupportedFiles) Error() string { return e.err.Error() }
func (e *unsupportedFiles) Unwrap() error { return e.err }

// idsOnly tells whether err, which is why there is no model, is known to last: the engine's
// tokenizer is none that can be used here. Token ids need none.
func idsOnly(err error) bool {
	return errors.Is(err, errNoText) || textmodel.Unsupported(err) || unreadable(err)
}

// unreadable tells whether err is that the files of a tokenizer are not those of the engine's
// vocabulary: what they would make of its tokens is not what it meant.
func unreadable(err error) bool {
	var m *textmodel.Mismatch
	return errors.As(err, &m) && !m.Reads
}

// Text returns how the text of a pool's requests becomes tokens. It takes no lock.
func (f *Fleet) Text(pool string) PoolText {
	t := *f.texts.pools.Load()
	if p, ok := t[pool]; ok {
		return p
	}
	return t[""] // that of workers of an unknown model
}

const (
	// maxBundle bounds what an engine gives, in bytes, and bundleTimeout how long it may take.
	maxBundle     = 256 << 20
	bundleTimeout = 2 * time.Minute
	// maxTexts bounds the memory of models' tokenizers that engines have given, in bytes.
	maxTexts = 2 << 30
	// maxTextReads bounds the bundles that are read at once, maxTextChecks the self-checks.
	maxTextReads  = 2
	maxTextChecks = 16
	// checkTimeout bounds a self-check: an engine may compile its kernels for the first
	// request of the kind, which takes minutes on a CPU. A worker gets requests without it
	// after checkPatience.
	checkTimeout  = 4 * time.Minute
	checkPatience = 20 * time.Second
	// textRetry is the pause after the first failure to read a bundle. It doubles, up to
	// maxTextRetry.
	textRetry    = time.Second
	maxTextRetry = time.Minute
)

// workerText is what is known of how the text of a worker's engine becomes tokens. Only
// workers that take token ids have one. Guarded by Fleet.mu.
type workerText struct {
	run      int // the number of the reading that counts; 0: none was begun
	running  bool
	refresh  bool // it is read again, while model is used on
	failures int  // to read it, in a row
	model    *textmodel.Model
	release  func() // gives model back to the store; nil where it is of a path
	err      error  // why there is no model
	// held: the engine has not been compared with model yet, nor has any other, and the
	// worker gets no requests until then, for a while.
	held     bool
	checked  bool  // the engine agrees
	mismatch error // it does not
	unsure   error // why it could not be asked
}

// The states of workerText, for operators.
const (
	textLoading   = "loading"
	textFailed    = "failed"
	textUnchecked = "unchecked"
	textChecked   = "checked"
	textMismatch  = "mismatch"
)

var allTextStates = [...]string{textLoading, textFailed, textUnchecked, textChecked, textMismatch}

func (t *workerText) state() string {
	switch {
	case t.model == nil && t.err != nil:
		return textFailed
	case t.model == nil:
		return textLoading
	case t.mismatch != nil:
		return textMismatch
	case t.checked:
		return textChecked
	}
	return textUnchecked
}

// takesTokens tells whether requests to w must be token ids.
func (w *Worker) takesTokens() bool { return w.Dialect().TakesTokens() }

// textHeldLocked reports whether w gets no requests because its text cannot be made into
// tokens yet. One that never can serves prompts that are token ids.
func (w *Worker) textHeldLocked() bool {
	if !w.takesTokens() || w.text.model == nil && idsOnly(w.text.err) {
		return false
	}
	return w.text.model == nil || w.text.held
}

// textProblemLocked says why w gets no requests for want of a tokenizer; empty if it does.
func (w *Worker) textProblemLocked() string {
	switch t := &w.text; {
	case !w.health.healthy || !w.textHeldLocked():
		return ""
	case t.model != nil:
		return "it is being asked how it makes tokens of some texts, to be compared with its tokenizer's files: it gets no requests before"
	case t.err != nil:
		return w.textFilesProblemLocked() + "; it gets no requests before"
	}
	return errTextLoading.Error() + ": it gets no requests before"
}

// textFilesProblemLocked says why the files of w's tokenizer cannot be used, and what to do.
func (w *Worker) textFilesProblemLocked() string {
	if w.fleet.textPathLocked(w) != "" {
		return fmt.Sprintf("the files of tokenizer_path cannot be used: %s; mend them and restart, or leave the path out if the engine gives its own", w.text.err)
	}
	return fmt.Sprintf("the files of its tokenizer, for which the engine is asked, cannot be used: %s; set tokenizer_path if it has none to give", w.text.err)
}

// textOfIDsOnly is what is served where token ids cannot be made into text.
const textOfIDsOnly = "chat and prompts that are text are refused for its model; prompts that are token ids are answered with token ids (return_token_ids)"

// mismatchMeansLocked says what follows from a mismatch, and what to do.
func (w *Worker) mismatchMeansLocked() string {
	means := "chat and prompts that are text are refused for its model; prompts that are token ids are served"
	switch {
	case unreadable(w.text.mismatch):
		means = textOfIDsOnly + ", as its own tokens have other texts in the files"
	case w.fleet.cfg.Text.RendererURL != "":
		means = "chats of its model go to renderer_url, and prompts that are text are refused; prompts that are token ids are served"
	}
	if w.fleet.textPathLocked(w) != "" {
		means += "; are the files of tokenizer_path those of the engine's model?"
	}
	return means
}

// textWarningsLocked are what an operator should know of the worker's text.
func (w *Worker) textWarningsLocked() (list []string) {
	if !w.takesTokens() {
		return nil
	}
	t := &w.text
	switch {
	case t.mismatch != nil:
		list = append(list, t.mismatch.Error()+": "+w.mismatchMeansLocked())
	case t.model == nil && t.err != nil:
		list = append(list, w.textFilesProblemLocked())
		if idsOnly(t.err) {
			list[len(list)-1] += ": " + textOfIDsOnly
		}
	case t.unsure != nil:
		list = append(list, fmt.Sprintf("whether it makes the same tokens of a text as its tokenizer's files could not be found out: %s", t.unsure))
	}
	if t.model != nil && t.mismatch == nil {
		if err := t.model.ChatRefusal(); err != nil {
			list = append(list, fmt.Sprintf("chat is refused for its model: %s", err))
		}
	}
	return list
}

// TokenizerInfo is how the text of a worker becomes tokens, in Info.
type TokenizerInfo struct {
	// State is loading, failed, unchecked, checked (the engine makes the same tokens of some
	// texts) or mismatch.
	State string `json:"state"`
	// Digest is the SHA-256 of the files.
	Digest string `json:"digest,omitempty"`
	Vocab  int    `json:"vocab_size,omitempty"`
	// ChatRefused is why chat is refused.
	ChatRefused string `json:"chat_refused,omitempty"`
}

func (w *Worker) tokenizerInfoLocked() *TokenizerInfo {
	if !w.takesTokens() {
		return nil
	}
	i := &TokenizerInfo{State: w.text.state()}
	if m := w.text.forUse(); m != nil {
		i.Digest, i.Vocab = m.Digest(), m.VocabSize()
		if err := m.ChatRefusal(); err != nil {
			i.ChatRefused = err.Error()
		}
	}
	return i
}

// digest identifies the files of the tokenizer, whether they can be used or not; empty: not
// known.
func (t *workerText) digest() string {
	var unsupported *unsupportedFiles
	switch {
	case t.model != nil:
		return t.model.Digest()
	case errors.As(t.err, &unsupported):
		return unsupported.digest
	}
	return ""
}

// forUse is the model as requests are to have it.
func (t *workerText) forUse() *textmodel.Model {
	if t.model == nil || t.mismatch == nil {
		return t.model
	}
	return t.model.WithChatRefusal(&textmodel.Refusal{Reason: "the self-check failed", Err: t.mismatch})
}

// dropTextLocked forgets the text of w.
func (w *Worker) dropTextLocked() {
	if w.text.release != nil {
		w.text.release()
	}
	w.text = workerText{run: w.text.run + 1}
}

// followTextLocked begins to read the text of w if that is to be done: when its facts were
// read first, when it is another engine, and, while what is known is used on, when
// connections to it were lost, since it may be another then.
func (f *Fleet) followTextLocked(w *Worker, exchanged, lost bool) {
	if !w.takesTokens() || !w.Facts().read {
		return
	}
	if exchanged {
		w.dropTextLocked()
	}
	switch t := &w.text; {
	case (t.model != nil || idsOnly(t.err)) && lost && f.textPathLocked(w) == "":
		t.refresh = true
		f.readTextLocked(w)
	case !t.running && t.model == nil && t.err == nil:
		f.readTextLocked(w)
	}
}

// readTextLocked begins to read the text of w.
func (f *Fleet) readTextLocked(w *Worker) {
	if w.removed || w.draining || f.closed {
		return
	}
	t := &w.text
	t.run++
	t.running, t.unsure = true, nil
	run, path := t.run, f.textPathLocked(w)
	if path != "" {
		p := f.texts.paths[path]
		if p == nil || !p.loaded {
			t.running = false // pathLoaded comes back to it
			return
		}
	}
	f.texts.reads.start(false, func() { f.readText(w, run, path) })
}

// textDue tries again to read the text of w, or has it no longer wait for its self-check.
func (f *Fleet) textDue(w *Worker, _ admission.Instant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &w.text
	switch {
	case w.removed || w.draining || f.closed:
	case (t.model == nil || t.refresh) && !t.running:
		f.readTextLocked(w)
	case t.model != nil && t.held:
		t.held, t.unsure = false, errors.New("it has not answered yet")
		f.textChangedLocked(w)
	case t.model != nil && !t.running && !t.checked && t.mismatch == nil:
		t.running = true
		run, m := t.run, t.model
		f.texts.checks.start(false, func() { f.checkText(w, run, m) })
	}
}

// readText reads the text of w, and has it checked. It runs on a goroutine of its own.
func (f *Fleet) readText(w *Worker, run int, path string) {
	m, release, err := f.loadText(w, path)
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &w.text
	if t.run != run || w.removed || w.draining || f.closed {
		if release != nil {
			release()
		}
		return
	}
	if t.model == nil {
		t.err = err
	}
	if err != nil {
		t.running = false
		log := f.log.With("worker", w.url, "id", w.id, "why", err)
		if t.failures++; t.failures == 1 {
			log.Warn("cannot use the files of a worker's tokenizer")
		}
		if !idsOnly(err) {
			f.sched.set(w.textEvent, f.clock.Now().Add(f.jitterLocked(min(textRetry<<min(t.failures-1, 16), maxTextRetry))))
		}
		f.textChangedLocked(w)
		return
	}
	t.failures, t.refresh = 0, false
	if t.model != nil && t.model.Digest() == m.Digest() {
		if release != nil {
			release()
		}
		if known := t.model; !t.checked && t.mismatch == nil {
			f.texts.checks.start(false, func() { f.checkText(w, run, known) })
		} else {
			t.running = false
		}
		return
	}
	if t.release != nil {
		t.release()
	}
	t.model, t.release = m, release
	t.checked, t.mismatch = false, nil
	t.held = !slices.ContainsFunc(f.workers, func(o *Worker) bool {
		return o != w && o.text.checked && o.text.model != nil && o.text.model.Digest() == m.Digest()
	})
	if t.held {
		f.sched.set(w.textEvent, f.clock.Now().Add(checkPatience))
	}
	f.log.Info("read the files of a worker's tokenizer", "worker", w.url, "id", w.id, "digest", m.Digest(), "vocabulary", m.VocabSize())
	f.textChangedLocked(w)
	f.texts.checks.start(false, func() { f.checkText(w, run, m) })
}

// loadText reads the files of w's model: those of a path, else the engine's.
func (f *Fleet) loadText(w *Worker, path string) (m *textmodel.Model, release func(), err error) {
	if path != "" {
		f.mu.Lock()
		p := f.texts.paths[path]
		f.mu.Unlock()
		return p.model, nil, p.err
	}
	ctx, cancel := context.WithTimeout(w.ctx, bundleTimeout)
	defer cancel()
	archive, digest, err := w.Dialect().Bundle(ctx, w.endpoint, maxBundle)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return nil, nil, errNoText
	case err != nil:
		return nil, nil, err
	}
	b, err := textmodel.ReadZip(archive, digest)
	if err != nil {
		return nil, nil, err
	}
	m, release, err = f.texts.store.Get(ctx, b.Digest(), func(context.Context) (*textmodel.Model, error) { return b.Model() })
	if textmodel.Unsupported(err) {
		err = &unsupportedFiles{b.Digest(), err}
	}
	return m, release, err
}

// checkText compares what the engine of w makes of some texts with what m makes of them.
func (f *Fleet) checkText(w *Worker, run int, m *textmodel.Model) {
	ctx, cancel := context.WithTimeout(w.ctx, checkTimeout)
	d := w.Dialect()
	err := f.texts.selfCheck(ctx, m, func(ctx context.Context, text string) ([]uint32, error) {
		return d.Tokenize(ctx, w.endpoint, text)
	})
	cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &w.text
	if t.run != run || w.removed || w.draining || f.closed {
		return
	}
	var other *textmodel.Mismatch
	t.running, t.held, t.unsure = false, false, nil
	f.sched.drop(w.textEvent)
	log := f.log.With("worker", w.url, "id", w.id, "digest", m.Digest())
	switch {
	case err == nil:
		t.checked = true
		log.Debug("a worker makes the same tokens as its tokenizer's files")
	case errors.As(err, &other):
		t.mismatch = other
		log.Warn("a worker makes other tokens than its tokenizer's files: "+w.mismatchMeansLocked(), "about", other)
	default:
		t.unsure = err
		log.Warn("cannot find out whether a worker makes the same tokens as its tokenizer's files", "why", err)
		if !errors.Is(err, errors.ErrUnsupported) {
			f.sched.set(w.textEvent, f.clock.Now().Add(factsInterval))
		}
	}
	f.textChangedLocked(w)
}

// textChangedLocked puts in force what is new of the text of w.
func (f *Fleet) textChangedLocked(w *Worker) {
	before := w.modelProblem
	var changes []admission.Change
	news := f.applySoonLocked([]*Worker{w}, &changes)
	f.publishTextsLocked()
	if w.modelProblem != "" && w.modelProblem != before {
		f.log.Warn("worker has a configuration warning", "worker", w.url, "id", w.id, "about", w.modelProblem)
	}
	if len(changes) > 0 {
		f.gate.Apply(changes...)
	}
	f.logPairing(news)
}

// publishTextsLocked rebuilds what Text returns.
func (f *Fleet) publishTextsLocked() {
	if !f.hasTokens && len(f.texts.paths) == 0 {
		if len(*f.texts.pools.Load()) > 0 {
			f.texts.pools.Store(&map[string]PoolText{})
		}
		return
	}
	pools := map[string]PoolText{}
	for _, w := range f.workers {
		if w.draining || w.modelProblem != "" {
			continue
		}
		names := w.models
		if len(names) == 0 {
			names = []string{""}
		}
		for _, name := range names {
			p, ok := pools[name]
			if !ok {
				p = f.pathTextLocked(name)
			}
			pools[name] = p.with(w)
		}
	}
	for name, p := range pools {
		if p.Model != nil {
			p.Err, p.Loading = nil, false
			if c := int64(p.Model.Context()); c > 0 && (p.Context == 0 || c < p.Context) {
				p.Context = c
			}
		}
		p.IDsOnly = p.Model == nil && p.TakesTokens && !p.Loading && idsOnly(p.Err)
		pools[name] = p
	}
	f.texts.pools.Store(&pools)
}

// with adds what w says.
func (p PoolText) with(w *Worker) PoolText {
	if n := w.Facts().MaxModelLen(); n > 0 && (p.Context == 0 || n < p.Context) {
		p.Context = n
	}
	if !w.takesTokens() {
		return p
	}
	p.TakesTokens = true
	if t := w.Facts().Tokens; t != nil && p.Engine == nil {
		p.Engine = newEngineText(t)
	}
	t := &w.text
	switch {
	case unreadable(t.mismatch):
		p.Model, p.Mismatch, p.Err = nil, t.mismatch, t.mismatch
	case unreadable(p.Mismatch): // the other workers have the same files
	case t.mismatch != nil && p.Mismatch == nil:
		p.Model, p.Mismatch = t.forUse(), t.mismatch
	case t.model != nil && p.Model == nil:
		p.Model = t.model
	case t.model != nil || p.Model != nil:
	case t.err == nil:
		p.Err, p.Loading = errTextLoading, true
	case p.Err == nil:
		p.Err = t.err
	}
	return p
}
