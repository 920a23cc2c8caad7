package kubernetes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/discovery"
	"github.com/sluice-router/sluice/internal/fleet"
)

// afterGrace is how long a pod is still declared after the end of its grace period. Its
// engine was killed then; the pod itself stays while its node does not answer.
const afterGrace = 10 * time.Second

// read puts the workers of all objects together. Pods win over EndpointSlices: an endpoint
// whose pod is among pods is left to that pod, which may have said that it is no worker.
// departed are workers that leave, where no object has their address now.
func read(pods, slicesOf map[string]*object, departed []fleet.Declared, now time.Time) discovery.Reading {
	c := collection{now: now, at: make(map[string]int, len(pods))}
	known := make(map[string]bool, len(pods))
	for _, key := range slices.Sorted(maps.Keys(pods)) {
		o := pods[key]
		known[o.uid] = true
		c.warnings = append(c.warnings, o.warnings...)
		for _, w := range o.workers {
			c.add(w, o.created)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(slicesOf)) {
		o := slicesOf[key]
		c.warnings = append(c.warnings, o.warnings...)
		for i, w := range o.workers {
			if o.pods[i] == "" || !known[o.pods[i]] {
				c.addEndpoint(w, o.created)
			}
		}
	}
	for _, w := range departed {
		if _, taken := c.at[w.URL]; !taken {
			c.at[w.URL] = len(c.workers)
			c.workers = append(c.workers, w)
		}
	}
	return discovery.Reading{Workers: c.workers, Warnings: bounded(c.warnings)}
}

// collection gathers the workers of one reading, one for each URL.
type collection struct {
	now      time.Time
	workers  []fleet.Declared
	created  []time.Time    // of the object of each worker
	at       map[string]int // by URL
	warnings []string
}

// add takes a pod's worker. An address is given to another pod as soon as its former one
// has ended, which may be before that is seen here: the one that stays wins, else the
// newer one.
func (c *collection) add(w fleet.Declared, created time.Time) {
	if w.Leaving && !w.LeaveBy.IsZero() && c.now.Sub(w.LeaveBy) > afterGrace {
		return
	}
	i, twice := c.at[w.URL]
	if !twice {
		c.at[w.URL] = len(c.workers)
		c.workers, c.created = append(c.workers, w), append(c.created, created)
		return
	}
	wins, loses := c.workers[i], w
	if prefer(w, created, c.workers[i], c.created[i]) {
		wins, loses = w, c.workers[i]
		c.workers[i], c.created[i] = w, created
	}
	if !loses.Leaving {
		c.warnings = append(c.warnings, fmt.Sprintf("%s: it has the address of %s, which is used: %s", loses.Origin, wins.Origin, w.URL))
	}
}

// prefer reports whether a is the one that has the address now.
func prefer(a fleet.Declared, aCreated time.Time, b fleet.Declared, bCreated time.Time) bool {
	if a.Leaving != b.Leaving {
		return b.Leaving
	}
	return cmp.Or(aCreated.Compare(bCreated), strings.Compare(b.Origin, a.Origin)) > 0
}

// addEndpoint takes an endpoint's worker. One address is often in several slices, so
// that a second one is no news; one that is ready wins.
func (c *collection) addEndpoint(w fleet.Declared, created time.Time) {
	i, twice := c.at[w.URL]
	if !twice {
		c.add(w, created)
		return
	}
	if old := &c.workers[i]; strings.HasPrefix(old.Origin, "endpointslice ") && rank(&w) < rank(old) {
		c.workers[i], c.created[i] = w, created
	}
}

func rank(w *fleet.Declared) int {
	switch {
	case w.Leaving:
		return 2
	case w.NotReady != "":
		return 1
	}
	return 0
}

// bounded keeps the first warnings, and counts the others.
func bounded(warnings []string) []string {
	if n := len(warnings); n > discovery.MaxWarnings {
		keep := discovery.MaxWarnings - 1
		return append(slices.Clone(warnings[:keep]), fmt.Sprintf("and %d more warnings", n-keep))
	}
	return warnings
}
