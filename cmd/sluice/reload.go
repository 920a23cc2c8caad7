package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/discovery"
	"github.com/sluice-router/sluice/internal/server"
)

// reload puts what has changed in the configuration's files in force: classes,
// limits, thresholds and workers.
type reload struct {
	reader atomic.Pointer[config.Reloader] // nil until startReload
	failed bool                            // the last one did; owned by reloaded
}

// startReload reads the files again on SIGHUP, when their contents change, and on
// POST /admission/reload, until the returned function is called.
func (r *router) startReload(ctx context.Context, reader *config.Reloader) (stop func()) {
	r.reload.reader.Store(reader)
	ctx, cancel := context.WithCancel(ctx)
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		reader.Run(ctx, hangup)
	}()
	return func() {
		signal.Stop(hangup)
		cancel()
		<-done
	}
}

// apply hands a new configuration to each part, which applies what it can without a
// restart.
func (r *router) apply(c config.Change) error {
	workers := slices.Contains(c.Changed, "workers")
	if workers {
		if err := r.fleet.Check(c.New.Workers); err != nil {
			return err
		}
	}
	if r.node != nil {
		r.node.SetGeneration(uint64(c.New.Generation))
	}
	r.gate.Reload(gateSettings(c.New))
	r.fleet.SetAliases(c.New.Fleet.ModelAliases)
	r.server.Reload(c.New)
	if workers {
		r.takeConfigured(c.New)
	}
	return nil
}

// reloaded tells of a reload that failed in the state of the source of workers too: what
// the list says now is not in force.
func (r *router) reloaded(err error) {
	switch {
	case err != nil:
		r.sources.Take(sourceConfiguration, discovery.Reading{Err: err})
	case r.reload.failed:
		r.takeConfigured(r.reload.reader.Load().Current())
	}
	r.reload.failed = err != nil
}

// Reload implements server.Reloader.
func (r *reload) Reload() error {
	reader := r.reader.Load()
	if reader == nil {
		return errors.New("this router was started without files to read")
	}
	_, err := reader.Reload()
	return err
}

// State implements server.Reloader.
func (r *reload) State() server.ReloadState {
	reader := r.reader.Load()
	if reader == nil {
		return server.ReloadState{Generation: 1}
	}
	st := reader.Status()
	out := server.ReloadState{Generation: st.Generation, Loaded: st.Loaded, Trigger: st.Trigger}
	if st.Err != nil {
		out.Error = st.Err.Error()
	}
	for _, w := range st.Warnings {
		out.Warnings = append(out.Warnings, w.String())
	}
	return out
}
