// Package file is the source of workers that a file lists: as they stand in the
// configuration, or as a manifest of the SGLang model gateway.
//
// The file is looked at again and again and judged by its contents: whether it was
// written in place, replaced by another file, or is a link that points elsewhere now (as in
// a mounted ConfigMap) makes no difference. Contents that change while they are looked at
// are being written and are looked at again.
package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/discovery"
	"github.com/sluice-router/sluice/internal/engine/dialects"
	"github.com/sluice-router/sluice/internal/fleet"
)

// Name is the name of the source.
const Name = "file"

// The labels of a worker that say where it is from, as the SGLang model gateway sets them.
const (
	labelProvider = "smg.ai/discovery-provider"
	labelID       = "smg.ai/discovery-id"
)

const (
	maxBytes = 8 << 20
	// settlePause is between two looks that must find the same contents; settleLooks
	// bounds them.
	settlePause = 100 * time.Millisecond
	settleLooks = 10
)

var errUnsettled = errors.New("its contents keep changing")

// Source is the file. It is to be run once.
type Source struct {
	// immutable
	path     string
	interval time.Duration
	list     config.WorkerList

	// owned by Run
	data   []byte            // of the last look that succeeded
	last   discovery.Reading // what it says
	linked bool              // it names files, which may change without it
}

// New makes the source of a configuration that names a file.
func New(cfg *config.Config) *Source {
	dialects := dialects.All()
	return &Source{
		path: cfg.Discovery.File, interval: cfg.Discovery.CheckInterval,
		list: config.WorkerList{Config: cfg, Connector: func(class string) string {
			name, _ := dialects.Connector(class)
			return name
		}},
	}
}

// Check reads the file once and says how many of its workers can be used, and what is wrong
// with it. ok is false if it cannot be read as a whole.
func Check(cfg *config.Config) (usable int, warnings []config.Warning, ok bool) {
	s := New(cfg)
	data, err := discovery.ReadFile(s.path, maxBytes)
	if err == nil {
		var listed []config.ListedWorker
		if listed, warnings, err = s.list.Read(s.path, data); err == nil {
			for _, l := range listed {
				if !l.LeftOut {
					usable++
				}
			}
			return usable, warnings, true
		}
	}
	var wrong config.Errors
	if !errors.As(err, &wrong) {
		return 0, []config.Warning{{Source: s.path, Message: err.Error()}}, false
	}
	warnings = nil
	for _, e := range wrong {
		warnings = append(warnings, config.Warning{Source: e.Source, Path: e.Path, Message: e.Message})
	}
	return 0, warnings, false
}

// Name implements discovery.Source.
func (s *Source) Name() string { return Name }

// Run implements discovery.Source. It reports after each look, so that a list from which
// many workers are missing is read several times.
func (s *Source) Run(ctx context.Context, report func(discovery.Reading)) {
	ticks := time.NewTicker(s.interval)
	defer ticks.Stop()
	for {
		if r, ok := s.look(ctx); ok {
			report(r)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// look reads the file. ok is false when ctx has ended meanwhile.
func (s *Source) look(ctx context.Context) (r discovery.Reading, ok bool) {
	data, err := discovery.ReadFile(s.path, maxBytes)
	for n := 0; err == nil && !bytes.Equal(data, s.data); n++ {
		if n == settleLooks {
			err = fmt.Errorf("cannot read %s: %w", s.path, errUnsettled)
			break
		}
		select {
		case <-ctx.Done():
			return r, false
		case <-time.After(settlePause):
		}
		before := data
		if data, err = discovery.ReadFile(s.path, maxBytes); err == nil && bytes.Equal(data, before) {
			break
		}
	}
	if err != nil {
		return discovery.Reading{Err: err}, true
	}
	if s.data != nil && bytes.Equal(data, s.data) && !s.linked {
		return s.last, true
	}
	listed, warnings, err := s.list.Read(s.path, data)
	if err != nil {
		return discovery.Reading{Err: err}, true
	}
	s.data, s.last, s.linked = data, s.declare(listed, warnings), false
	for i := range listed {
		s.linked = s.linked || listed[i].APIKeyFile != ""
	}
	return s.last, true
}

// declare makes a reading of what the file says.
func (s *Source) declare(listed []config.ListedWorker, warnings []config.Warning) discovery.Reading {
	r := discovery.Reading{Workers: make([]fleet.Declared, 0, len(listed))}
	for _, l := range listed {
		if l.LeftOut {
			r.LeftOut = append(r.LeftOut, l.URL)
			continue
		}
		name := l.Name
		if name == "" {
			name = l.URL
		}
		labels := map[string]string{}
		for k, v := range l.Labels {
			labels[k] = v
		}
		if len(labels)+2 <= config.MaxLabels {
			labels[labelProvider], labels[labelID] = Name, name
		}
		l.Labels = labels
		r.Workers = append(r.Workers, fleet.Declared{Worker: l.Worker, Identity: l.Identity, Origin: s.path + ":" + strconv.Itoa(l.Line)})
	}
	for i, w := range warnings {
		if i == discovery.MaxWarnings-1 && len(warnings) > discovery.MaxWarnings {
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s has %d more warnings", s.path, len(warnings)-i))
			break
		}
		r.Warnings = append(r.Warnings, w.String())
	}
	return r
}
