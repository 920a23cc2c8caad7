// Package saved keeps the workers that were registered by request in a file, so that a
// restart of the router does not lose them.
//
// The file is JSON and replaced as a whole: a temporary file beside it, synced and renamed,
// so that there is a complete one at any moment. It has the keys of the workers, without
// which they could not be used again, and so only its owner may read it.
package saved

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/discovery"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/text"
)

// Fleet is what is asked of the fleet.
type Fleet interface {
	// Registrations are the workers that were registered by request, as last set.
	Registrations() []fleet.Registration
	// RegistrationsChanged has a value after a change of what Registrations returns.
	RegistrationsChanged() <-chan struct{}
	// AddRegistration registers a worker again.
	AddRegistration(ctx context.Context, r fleet.Registration) error
}

const (
	version    = 1
	maxBytes   = 16 << 20
	maxWorkers = 10_000
	// savePause is the shortest time between two writes; retryPause is the longest
	// between two that fail.
	savePause  = time.Second
	retryPause = 30 * time.Second
)

// File is the file in which registrations are kept.
type File struct {
	// immutable
	path  string
	pd    bool
	fleet Fleet
	log   *slog.Logger
	stop  chan struct{}
	done  chan struct{}

	// unusable: there is something else at path. Set by Restore.
	unusable bool

	// owned by the goroutine that saves
	written []byte // what the file holds, as far as is known
	failed  bool   // the last write did
}

// New makes the file of a configuration that names one. It is not read yet.
func New(cfg *config.Config, f Fleet, log *slog.Logger) *File {
	return &File{
		path: cfg.Discovery.WorkersState, pd: cfg.Fleet.PDDisaggregation, fleet: f,
		log: log.With("file", cfg.Discovery.WorkersState), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// document is the contents of the file.
type document struct {
	Version int      `json:"version"`
	Workers []worker `json:"workers"`
}

// worker is one registration. The names are those of POST /workers.
type worker struct {
	config.Worker
	BootstrapPort any    `json:"bootstrap_port,omitempty"` // as a request has it
	APIKey        string `json:"api_key,omitempty"`        // the embedded one is hidden when it is written
	Drained       bool   `json:"drained,omitempty"`
}

// Restore registers the workers that the file holds. What cannot be read is put aside as
// FILE.bad, with a warning: the router starts in any case.
func (s *File) Restore(ctx context.Context) {
	data, err := discovery.ReadFile(s.path, maxBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case errors.Is(err, discovery.ErrNotRegular):
		// A directory or a device is not ours to move or to replace.
		s.unusable = true
		s.log.Error("workers that are registered by request are not kept: they would be gone after a restart", "error", err.Error())
		return
	case err != nil:
		s.putAside(nil, err)
		return
	}
	var d struct {
		Version int               `json:"version"`
		Workers []json.RawMessage `json:"workers"`
	}
	if err := json.Unmarshal(data, &d); err != nil {
		s.putAside(nil, err)
		return
	}
	if d.Version != version {
		s.putAside(nil, fmt.Errorf("it has the version %d, which must be %d", d.Version, version))
		return
	}
	restored := 0
	var first error
	for i, raw := range d.Workers {
		err := errors.New("there are too many")
		if i < maxWorkers {
			err = s.restore(ctx, raw)
		}
		if err == nil {
			restored++
		} else if first == nil {
			first = fmt.Errorf("workers[%d]: %w", i, err)
		}
	}
	s.log.Info("workers that were registered by request are registered again", "workers", restored)
	if first != nil {
		s.putAside(data, fmt.Errorf("%d of its %d workers cannot be registered again; the first: %w", len(d.Workers)-restored, len(d.Workers), first))
		return
	}
	s.written = data
}

// restore registers one worker.
func (s *File) restore(ctx context.Context, raw json.RawMessage) error {
	var w struct {
		config.Worker
		Drained bool `json:"drained"`
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return err
	}
	if w.Type == "" {
		w.Type = config.WorkerRegular
	}
	if s.pd == (w.Type == config.WorkerRegular) {
		return fmt.Errorf("%s is %s, for which this router's mode has no use", w.URL, w.Type)
	}
	return s.fleet.AddRegistration(ctx, fleet.Registration{Worker: w.Worker, Drained: w.Drained})
}

// putAside keeps what cannot be used as FILE.bad: a copy of data, or where that is nil the
// file itself.
func (s *File) putAside(data []byte, why error) {
	bad := s.path + ".bad"
	var err error
	if data != nil {
		err = replace(bad, data)
	} else {
		err = os.Rename(s.path, bad)
	}
	log := s.log.With("error", text.Clip(why.Error(), 500))
	if err != nil {
		log.Warn("the file of registered workers cannot be used, nor put aside", "aside", err.Error())
		return
	}
	log.Warn("the file of registered workers cannot be used whole; it is put aside", "aside", bad)
}

// Start begins to save changes. Close ends that.
func (s *File) Start() { go s.run() }

// Close saves what has changed last and ends. It must be called once, after Start.
func (s *File) Close() {
	close(s.stop)
	<-s.done
}

func (s *File) run() {
	defer close(s.done)
	pause := savePause
	s.save() // so that a file that cannot be written is found at the start
	for {
		var retry <-chan time.Time
		if s.failed {
			retry = time.After(pause)
		}
		select {
		case <-s.stop:
			s.save()
			return
		case <-s.fleet.RegistrationsChanged():
		case <-retry:
		}
		if s.save() {
			pause = savePause
		} else {
			pause = min(2*pause, retryPause)
			continue
		}
		select {
		case <-s.stop:
			s.save()
			return
		case <-time.After(savePause):
		}
	}
}

// save writes the file if what it holds has changed. It reports whether the file is right
// now.
func (s *File) save() bool {
	if s.unusable {
		return true
	}
	data, err := marshal(s.fleet.Registrations())
	if err == nil {
		if bytes.Equal(data, s.written) {
			return true
		}
		err = replace(s.path, data)
	}
	if err != nil {
		if !s.failed {
			s.failed = true
			s.log.Error("the file of registered workers cannot be written: they would be gone after a restart", "error", err.Error())
		}
		return false
	}
	if s.failed {
		s.log.Info("the file of registered workers can be written again")
	}
	s.written, s.failed = data, false
	return true
}

func marshal(list []fleet.Registration) ([]byte, error) {
	d := document{Version: version, Workers: []worker{}}
	for _, r := range list {
		w := worker{Worker: r.Worker, APIKey: r.APIKey.Reveal(), Drained: r.Drained}
		if p := r.Worker.BootstrapPort; p == config.BootstrapNone {
			w.BootstrapPort = p.String()
		} else if p != config.BootstrapAuto {
			w.BootstrapPort = int(p)
		}
		d.Workers = append(d.Workers, w)
	}
	data, err := json.MarshalIndent(d, "", " ")
	return append(data, '\n'), err
}

// replace puts a file with data in the place of path, which only its owner may read. If
// path is a link, what it leads to is replaced.
func replace(path string, data []byte) (err error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*.tmp") // of mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // there is no more to be done about it
		}
	}()
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
