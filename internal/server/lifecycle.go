package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/sluice-router/sluice/internal/dispatch"
)

// Listen opens both ports. If it was not called, Run calls it.
func (s *Server) Listen(ctx context.Context) error {
	if s.listener != nil {
		return nil
	}
	l, err := listen(ctx, "clients", s.cfg.Server.Addr(), "--port")
	if err != nil {
		return err
	}
	m, err := listen(ctx, "metrics", s.cfg.Server.PrometheusAddr(), "--prometheus-port")
	if err != nil {
		_ = l.Close() // nothing came through it
		return err
	}
	s.listener, s.metricsListener = l, m
	s.warnFileLimit()
	return nil
}

// Addr is the address for clients that Listen opened.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// MetricsAddr is the address for metrics that Listen opened.
func (s *Server) MetricsAddr() net.Addr { return s.metricsListener.Addr() }

// Run serves until ctx ends, drains, and returns when no request, connection or
// goroutine of the server is left. The error is nil after a drain, also one that
// had to end requests.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Listen(ctx); err != nil {
		return err
	}
	ended := make(chan error, 2)
	serve := func(what string, serve func() error) {
		err := serve()
		if errors.Is(err, http.ErrServerClosed) {
			err = nil
		} else {
			err = fmt.Errorf("cannot go on accepting connections for %s: %w", what, err)
		}
		ended <- err
	}
	go serve("clients", func() error { return s.main.Serve(s.listener) })
	go serve("metrics", func() error { return s.scrapes.Serve(s.metricsListener) })

	trimming, stopTrimming := context.WithCancel(context.Background())
	defer stopTrimming()
	go s.buffers.trim(trimming)
	watching, stopWatching := context.WithCancel(context.Background())
	watched := make(chan struct{})
	defer func() {
		stopWatching()
		<-watched
	}()
	go func() {
		defer close(watched)
		(&closedWatch{gate: s.opts.Gate, log: s.log.Logger}).run(watching)
	}()

	running := 2
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-ended:
		running--
	}
	s.drain()
	for ; running > 0; running-- {
		failed = errors.Join(failed, <-ended)
	}
	return failed
}

// drain ends the service in steps: not ready, no new requests, the rest is ended.
func (s *Server) drain() {
	o, gate, start := &s.cfg.Server, s.opts.Gate, time.Now()
	if !s.phase.CompareAndSwap(phaseServing, phaseNotReady) { // aborted
		s.waitIdle(shutdownGrace)
		s.closeServers()
		return
	}
	s.log.Info("shutting down: reporting not ready", "pre_drain_wait", o.PreDrainWait, "running", s.active.Load(), "waiting", gate.Waiting())
	if n := gate.DrainWithin(o.PreDrainWait + o.DrainTimeout); n > 0 {
		s.log.Info("refused requests that could not start before the end of the drain", "refused", n)
	}
	time.Sleep(o.PreDrainWait)

	s.phase.Store(phaseDraining)
	gate.StopArrivals()
	s.main.Drain()
	s.log.Info("draining: new requests are refused", "drain_timeout", o.DrainTimeout, "running", s.active.Load(), "waiting", gate.Waiting())
	whole := s.waitIdle(o.DrainTimeout)
	if !whole {
		s.log.Warn("the drain timeout passed: ending what is left", "drain_timeout", o.DrainTimeout, "running", s.active.Load(), "waiting", gate.Waiting())
		gate.RefuseWaiters()
		s.end(dispatch.ErrShutdown)
		s.waitIdle(shutdownGrace)
	}
	s.closeServers()
	s.end(dispatch.ErrShutdown)
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	if err := s.opts.Dispatcher.Wait(ctx); err != nil {
		s.log.Warn("prefill legs are still running after the drain", "error", err)
	}
	s.log.Info("stopped", "whole", whole, "took", time.Since(start).Round(time.Millisecond))
}

// Abort cuts all connections without an answer, as the death of the process would, and
// closes both ports. Run returns then.
func (s *Server) Abort() {
	s.phase.Store(phaseAborted)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.main.Shutdown(gone)
	_ = s.scrapes.Close()
	s.end(dispatch.ErrShutdown)
}

// waitIdle waits until no request is active, at most for limit. It reports whether
// none is.
func (s *Server) waitIdle(limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	for s.active.Load() > 0 {
		select {
		case <-s.idle:
		case <-t.C:
			return s.active.Load() == 0
		}
	}
	return true
}

// closeServers closes the ports, waits up to shutdownGrace until answers are sent, and
// then closes the connections that are left.
func (s *Server) closeServers() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	_ = s.main.Shutdown(ctx) // on a timeout it has closed the connections
	if s.scrapes.Shutdown(ctx) != nil {
		_ = s.scrapes.Close() // it only repeats what closing sockets said
	}
}
