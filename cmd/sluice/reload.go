package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/server"
)

// reload puts what has changed in the configuration's files in force: classes,
// limits and thresholds.
type reload struct {
	reader atomic.Pointer[config.Reloader] // nil until startReload
}

// startReload reads the files again on SIGHUP, when their contents change, and
// when a client orders it, until the returned function is called.
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

// apply puts a change in force.
func (r *router) apply(c config.Change) error {
	switch {
	case c.Classes:
		r.classes.Store(c.New.Classes)
		r.gate.Reload(gateLimits(c.New), c.New.Classes)
	case c.Limits:
		r.gate.SetLimits(gateLimits(c.New))
	}
	r.server.Reload(c.New)
	r.dispatcher.Reload(c.New)
	if c.Thresholds {
		r.gate.SetRejectThresholds(c.New.Admission.RejectThresholds())
	}
	return nil
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

// classesInForce tells which capacities the classes go by.
type classesInForce struct {
	atomic.Pointer[admission.Classes]
}

func (c *classesInForce) needCapacity(role admission.Role) bool {
	all := c.Load()
	if all == nil {
		return false
	}
	profiles := []*admission.Profile{all.Root}
	for _, p := range all.Models {
		profiles = append(profiles, p)
	}
	for _, p := range profiles {
		if p == nil {
			continue
		}
		for i := range p.Classes {
			prefill, decode := p.Classes[i].PrefillBusyFrac != nil, p.Classes[i].DecodeBusyFrac != nil
			if prefill && role != admission.RoleDecode || decode && role != admission.RolePrefill {
				return true
			}
		}
	}
	return false
}
