package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// CommandOptions are the options of the sim command.
type CommandOptions struct {
	Options

	// JSON prints one JSON object a line instead of text.
	JSON bool
	// Load makes the workers cheap enough to be a load test's backend: no
	// request log, health answered at once, long keep-alive.
	Load bool
	// PrefillDPSize and DecodeDPSize are the data-parallel ranks of the workers of these
	// roles. Zero: as Worker says.
	PrefillDPSize, DecodeDPSize int
	// KVLies are told from the start by all workers (see ParseKVLie).
	KVLies []string
}

// DefaultTiming is the command's: a mid-sized model on one GPU.
func DefaultTiming() Timing {
	return Timing{PrefillRate: 20000, Transfer: 2 * time.Millisecond, DecodeStep: 6 * time.Millisecond,
		DecodePerRequest: 50 * time.Microsecond, OutputTokens: 64}
}

// Run starts a fleet, prints where it is, one line a worker, and a last line
// when all is up, and runs until ctx ends. Text lines are
// "prefill-0 prefill http://127.0.0.1:40001 8998"; the last one begins with
// "ready". With JSON a worker's line is an object with id, role, url and
// bootstrap_port, the last one has ready and admin_url.
func Run(ctx context.Context, o CommandOptions, out io.Writer) error {
	for _, n := range []struct {
		role   Role
		number int
	}{{Prefill, o.Prefill}, {Decode, o.Decode}, {Regular, o.Regular}} {
		if n.number < 0 {
			return fmt.Errorf("cannot simulate %d %s workers: the number must be 0 or more", n.number, n.role)
		}
	}
	if o.Prefill+o.Decode+o.Regular == 0 {
		return fmt.Errorf("cannot simulate a fleet of no workers: ask for prefill, decode or regular ones")
	}
	if o.Load {
		o.Worker.LogRequests, o.Worker.LogBodyBytes, o.Worker.HealthDelay = -1, -1, -1
		def(&o.Worker.MaxRunning, 1<<20)
		if o.Worker.KVEvents == nil {
			def(&o.Worker.CacheBlocks, -1)
		}
	}
	var lies []KVLie
	for _, text := range o.KVLies {
		lie, err := ParseKVLie(text)
		if err != nil {
			return err
		}
		lies = append(lies, lie)
	}
	o.Each = func(role Role, _ int, w *WorkerOptions) {
		switch {
		case role == Prefill && o.PrefillDPSize != 0:
			w.DPSize = o.PrefillDPSize
		case role == Decode && o.DecodeDPSize != 0:
			w.DPSize = o.DecodeDPSize
		}
	}
	f, err := Start(o.Options)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, w := range f.Workers() {
		for _, lie := range lies {
			if err := w.AddKVLie(lie); err != nil {
				return err
			}
		}
	}
	if err := f.announce(out, o.JSON); err != nil {
		return err
	}
	<-ctx.Done()
	if n := f.Violated(); n > 0 && !o.JSON {
		fmt.Fprintf(out, "%d violations of the engines' contract, the first: %s\n", n, f.Violations()[0])
	}
	return nil
}

func (f *Fleet) announce(out io.Writer, asJSON bool) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	for _, w := range f.Workers() {
		if asJSON {
			if err := enc.Encode(w.info(false)); err != nil {
				return fmt.Errorf("cannot print worker: %w", err)
			}
			continue
		}
		fmt.Fprintf(&b, "%s %s %s", w.id, w.role, w.URL())
		if port := w.BootstrapPort(); w.role == Prefill && port > 0 {
			fmt.Fprintf(&b, " %d", port)
		}
		b.WriteByte('\n')
	}
	if asJSON {
		if err := enc.Encode(object{"ready": true, "admin_url": f.adminURL}); err != nil {
			return fmt.Errorf("cannot print fleet: %w", err)
		}
	} else {
		fmt.Fprintf(&b, "ready: %d workers", len(f.Workers()))
		if f.adminURL != "" {
			fmt.Fprintf(&b, ", admin API at %s/sim/workers", f.adminURL)
		}
		b.WriteByte('\n')
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("cannot print fleet: %w", err)
	}
	return nil
}
