package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-router/sluice/internal/replay"
)

// replayOptions are the flags of the command that are not of the model.
type replayOptions struct {
	model replay.Options
	arms  []string
	json  bool
	csv   string
	html  string
}

func newReplay() *cobra.Command {
	o := replayOptions{model: replay.Default()}
	cmd := &cobra.Command{
		Use:   "replay TRACE",
		Short: "Run a trace through the gate and the policies, with modelled engines",
		Long: "Run the requests of a trace through this router's gate, policies and index of KV caches, in virtual time and\n" +
			"with modelled engines: one arm after the other, each another way to route the same requests. TRACE is a file of\n" +
			"JSON lines as Mooncake published them, or an access log of this router, \"-\" for standard input.\n" +
			"docs/replay.md says what the model has and what it leaves out.\n\nArms:\n\n" + armHelp(),
		Args: usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return runReplay(cmd, &o, args[0]) },
	}
	cmd.Flags().SortFlags = false
	f, m := cmd.Flags(), &o.model
	f.StringSliceVar(&o.arms, "arms", nil, "arms to run, in this order; all by default")
	f.BoolVar(&o.json, "json", false, "print one JSON object an arm and line in place of the table")
	f.StringVar(&o.csv, "csv", "", "file for a row of each request and arm")
	f.StringVar(&o.html, "html", "", "file for a page with plots")
	f.Uint64Var(&m.Random, "random", m.Random, "seed of all random choices: the same number gives the same result")
	f.Float64Var(&m.Speed, "speed", m.Speed, "how many times as fast as in the trace requests come")
	f.DurationVar(&m.TTFTGoal, "ttft-goal", m.TTFTGoal, "time to the first token that goodput counts")
	f.IntVar(&m.Workers, "workers", m.Workers, "prefill workers; with --aggregated workers that run whole requests")
	f.Float64Var(&m.TokensPerSecond, "tokens-per-second", m.TokensPerSecond, "prompt tokens a second that a worker computes")
	f.IntVar(&m.CacheBlocks, "cache-blocks", m.CacheBlocks, "blocks in the KV cache of a worker; those of a Mooncake trace have 512 tokens")
	f.BoolVar(&m.Aggregated, "aggregated", false, "workers run whole requests, rather than prefill alone")
	f.DurationVar(&m.DecodeStep, "decode-step", 0, "time of a decode step; with 0 here and below requests end with their prompts")
	f.DurationVar(&m.DecodePerRequest, "decode-per-request", 0, "what each running request adds to a step")
	f.IntVar(&m.DecodeWorkers, "decode-workers", m.DecodeWorkers, "decode workers, unless --aggregated")
	f.IntVar(&m.DecodeBlocks, "decode-blocks", 0, "KV blocks of a decode worker; 0: they hold all that comes")
	f.IntVar(&m.Routers, "routers", m.Routers, "routers that share the requests; each knows its own alone, and all events")
	f.IntVar(&m.Slots, "prefill-max-inflight-requests-per-worker", m.Slots, "slots of the arms with a gate; with --aggregated requests on a worker")
	f.IntVar(&m.QueueSize, "prefill-queue-size", 0, "most requests that wait at the gate; 0: no bound")
	f.Var(&seconds{&m.QueueTimeout}, "prefill-queue-timeout-secs", "longest wait at the gate; 0: no bound")
	f.IntVar(&m.AffinityLookahead, "affinity-lookahead", m.AffinityLookahead, "waiters that a worker with room looks at, in the arms of late binding")
	f.IntVar(&m.AffinityMaxPasses, "affinity-max-passes", m.AffinityMaxPasses, "how often one of them is passed over at most")
	f.Var(&seconds{&m.AffinityWait}, "affinity-wait-secs", "for how long one of them declines other workers than its holder")
	f.Float64Var(&m.CacheWeight, "cache-weight", m.CacheWeight, "waiting tokens that a cached token makes up for")
	f.Float64Var(&m.CacheMinMatch, "cache-min-match", m.CacheMinMatch, "part of a prompt below which a match counts as none")
	return cmd
}

// seconds is a time that is given as serve takes it, as a number of seconds.
type seconds struct{ to *time.Duration }

func (s *seconds) String() string {
	if s.to == nil {
		return "0"
	}
	return strconv.FormatFloat(s.to.Seconds(), 'f', -1, 64)
}

func (s *seconds) Set(text string) error {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x >= 0 && x <= maxSeconds) {
		return fmt.Errorf("must be a number of seconds from 0 to %d", maxSeconds)
	}
	*s.to = time.Duration(x * float64(time.Second))
	return nil
}

func (*seconds) Type() string { return "secs" }

// maxSeconds is a year.
const maxSeconds = 366 * 86400

func armHelp() string {
	var b strings.Builder
	for _, a := range replay.Arms() {
		fmt.Fprintf(&b, "  %-30s %s\n", a.Name, a.Help)
	}
	return b.String()
}

func runReplay(cmd *cobra.Command, o *replayOptions, name string) (err error) {
	if err := distinctFiles([][2]string{{"TRACE", name}, {"--csv", o.csv}, {"--html", o.html}}); err != nil {
		return err
	}
	trace, err := readTrace(cmd, name)
	if err != nil {
		return err
	}
	results, err := replay.Run(trace, o.model, o.arms)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	write := []func(*replay.Result) error{func(r *replay.Result) error { return replay.WriteJSON(out, r) }}
	if !o.json {
		describeTrace(out, trace)
		columns := 120
		if width := terminalStyle(out, os.Getenv).Width; width != nil {
			columns = width()
		}
		write[0] = replay.NewTable(out, columns, o.model.TTFTGoal, o.arms).Write
	}
	if o.csv != "" {
		f, e := os.Create(o.csv)
		if e != nil {
			return e
		}
		rows := replay.NewCSV(f)
		write = append(write, rows.Write)
		defer func() { err = firstError(err, rows.Flush(), f.Close()) }()
	}
	if o.html != "" {
		f, e := os.Create(o.html)
		if e != nil {
			return e
		}
		page := replay.NewPage("Replay of "+filepath.Base(name), o.model.TTFTGoal, modelFlags(cmd))
		write = append(write, func(r *replay.Result) error { page.Add(r); return nil })
		defer func() { err = firstError(err, page.Write(f), f.Close()) }()
	}
	for r, err := range results {
		if err != nil {
			return err
		}
		for _, w := range write {
			if err := w(r); err != nil {
				return err
			}
		}
		if cmd.Context().Err() != nil {
			return cmd.Context().Err()
		}
	}
	return nil
}

// distinctFiles fails if two of the named files are one, of which the second would be written
// over the first. Devices and pipes may be.
func distinctFiles(files [][2]string) error {
	var seen []os.FileInfo
	for i, f := range files {
		name, path := f[0], f[1]
		if path == "" {
			seen = append(seen, nil)
			continue
		}
		info, err := os.Stat(path)
		for j, other := range files[:i] {
			same := filepath.Clean(path) == filepath.Clean(other[1]) // a file that does not exist yet
			if err == nil {
				same = info.Mode().IsRegular() && seen[j] != nil && os.SameFile(info, seen[j])
			}
			if other[1] != "" && same {
				return fmt.Errorf("%s and %s are the same file, %s", other[0], name, path)
			}
		}
		seen = append(seen, info)
	}
	return nil
}

// modelFlags are the flags that a result depends on.
func modelFlags(cmd *cobra.Command) (flags [][2]string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch f.Name {
		case "help", "json", "csv", "html", "arms":
		default:
			flags = append(flags, [2]string{"--" + f.Name, f.Value.String()})
		}
	})
	return flags
}

func firstError(all ...error) error {
	i := slices.IndexFunc(all, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	return all[i]
}

// readTrace reads a trace from a file, or from standard input.
func readTrace(cmd *cobra.Command, name string) (*replay.Trace, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	t, err := replay.Read(in)
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", name, err)
	}
	return t, nil
}

// describeTrace tells above the table what the trace has.
func describeTrace(w io.Writer, t *replay.Trace) {
	var tokens int64
	blocks := 0
	for i := range t.Requests {
		tokens += t.Requests[i].Prompt
		blocks += len(t.Requests[i].Blocks)
	}
	last := t.Requests[len(t.Requests)-1].At
	fmt.Fprintf(w, "%d requests in %v, %d prompt tokens, %d blocks of %d tokens\n", len(t.Requests), last, tokens, blocks, t.BlockTokens)
	whys := make([]string, 0, len(t.Skipped))
	for why := range t.Skipped {
		whys = append(whys, why)
	}
	slices.Sort(whys)
	for _, why := range whys {
		fmt.Fprintf(w, "%d lines %s were skipped\n", t.Skipped[why], why)
	}
	if blocks == 0 {
		fmt.Fprintln(w, "the trace has no hashes of prompts, so nothing is ever cached; see --access-log-prefix-hashes of sluice serve")
	}
	fmt.Fprintln(w)
}
