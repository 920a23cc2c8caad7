package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// environment is what a figure means nothing without.
type environment struct {
	date, machine, goVersion, commit, load, how string
	cores                                       int
}

// writeHead prints what was measured where.
func writeHead(w io.Writer, e environment) {
	fmt.Fprintf(w, "# Load run of %s\n\n", e.date)
	fmt.Fprintf(w, "- Machine: %s, %d cores, load average at start %s\n", e.machine, e.cores, e.load)
	fmt.Fprintf(w, "- Commit %s, %s\n", e.commit, e.goVersion)
	fmt.Fprintf(w, "- %s\n", e.how)
	fmt.Fprint(w, "\nCPU is that of the router's process alone. Figures are medians of the rounds; ratios are taken within a\n"+
		"round first. Absolute figures belong to this machine and hour; ratios travel.\n")
}

// write prints everything as Markdown.
func write(w io.Writer, e environment, outcomes []*outcome) {
	writeHead(w, e)
	writeLoad(w, outcomes)
	writeProxy(w, outcomes)
	writeGrowth(w, outcomes)
	writeFirst(w, outcomes)
	writeMemory(w, outcomes)
	writeGoals(w, outcomes)
}

// table prints rows with aligned columns.
func table(w io.Writer, title string, rows [][]string) {
	if len(rows) < 2 {
		return
	}
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	fmt.Fprintf(w, "\n## %s\n\n", title)
	for n, row := range rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-len([]rune(cell)))
			if i == 0 {
				fmt.Fprintf(w, "| %s%s ", cell, pad)
			} else {
				fmt.Fprintf(w, "| %s%s ", pad, cell)
			}
		}
		fmt.Fprint(w, "|\n")
		if n == 0 {
			for i := range row {
				right := ":"
				if i == 0 {
					right = "-"
				}
				fmt.Fprintf(w, "|%s%s", strings.Repeat("-", width[i]+1), right)
			}
			fmt.Fprint(w, "|\n")
		}
	}
}

func writeLoad(w io.Writer, outcomes []*outcome) {
	rows := [][]string{{"scenario", "workers", "clients", "sluice /s", "smg /s", "direct /s",
		"CPU µs", "smg µs", "ratio", "goal", "added p50 ms", "smg ms", "wrong", "smg"}}
	for _, o := range ofKind(outcomes, kindLoad) {
		cpu := func(x sample) float64 { return x.cpu }
		rate := func(x sample) float64 { return x.perSecond }
		added := func(name string) string {
			return number(o.over(name, direct, func(a, b sample) float64 { return a.total50 - b.total50 }), 2)
		}
		rows = append(rows, []string{o.scenario.label(), o.scenario.size.String(), fmt.Sprint(o.scenario.clients),
			number(o.median(ours, rate), 0), number(o.median(peer, rate), 0), number(o.median(direct, rate), 0),
			number(o.median(ours, cpu), 0), number(o.median(peer, cpu), 0),
			number(o.ratio(cpu), 2), goal(o.scenario.goal), added(ours), added(peer),
			fmt.Sprint(o.errors[ours] + o.violations[ours]), fmt.Sprint(o.errors[peer] + o.violations[peer])})
	}
	table(w, "Throughput and CPU per request", rows)
}

// writeProxy compares with HAProxy, where that took part.
func writeProxy(w io.Writer, outcomes []*outcome) {
	rows := [][]string{{"scenario", "sluice /s", "haproxy /s", "smg /s", "sluice µs", "haproxy µs", "smg µs", "of haproxy", "added p50 ms", "haproxy ms", "wrong"}}
	cpu := func(x sample) float64 { return x.cpu }
	rate := func(x sample) float64 { return x.perSecond }
	for _, o := range ofKind(outcomes, kindLoad) {
		if len(o.samples[proxy]) == 0 {
			continue
		}
		row := []string{o.scenario.label()}
		for _, f := range []func(sample) float64{rate, cpu} {
			for _, name := range []string{ours, proxy, peer} {
				row = append(row, number(o.median(name, f), 0))
			}
		}
		row = append(row, number(o.over(ours, proxy, func(a, b sample) float64 { return a.cpu / b.cpu }), 2))
		for _, name := range []string{ours, proxy} {
			row = append(row, number(o.over(name, direct, func(a, b sample) float64 { return a.total50 - b.total50 }), 2))
		}
		rows = append(rows, append(row, fmt.Sprint(o.errors[proxy])))
	}
	table(w, "Aggregated mode beside HAProxy", rows)
}

// writeGrowth compares many workers with few, of each round.
func writeGrowth(w io.Writer, outcomes []*outcome) {
	rows := [][]string{{"scenario", "workers", "sluice µs", "with many", "growth", "smg µs", "with many", "growth", "goal"}}
	for _, o := range ofKind(outcomes, kindGrowth) {
		row := []string{o.scenario.label(), o.scenario.few.String() + ", " + o.scenario.size.String()}
		for _, name := range []string{ours, peer} {
			cpu := func(x sample) float64 { return x.cpu }
			row = append(row, number(o.median(withFew(name), cpu), 0), number(o.median(name, cpu), 0), number(o.growth(name), 2))
		}
		rows = append(rows, append(row, goal(goalGrowth)))
	}
	table(w, "Growth of CPU per request with the fleet", rows)
}

// growth is CPU per request with many workers as a part of that with few.
func (o *outcome) growth(name string) float64 {
	return o.over(name, withFew(name), func(many, few sample) float64 { return many.cpu / few.cpu })
}

func writeFirst(w io.Writer, outcomes []*outcome) {
	rows := [][]string{{"scenario", "direct p50 ms", "p99", "added p50 ms", "smg", "ratio", "added p99 ms", "smg", "ratio", "goal"}}
	for _, o := range ofKind(outcomes, kindFirst) {
		p50 := func(a, b sample) float64 { return a.first50 - b.first50 }
		p99 := func(a, b sample) float64 { return a.first99 - b.first99 }
		row := []string{o.scenario.label(),
			number(o.median(direct, func(x sample) float64 { return x.first50 }), 3),
			number(o.median(direct, func(x sample) float64 { return x.first99 }), 3)}
		for _, added := range []func(a, b sample) float64{p50, p99} {
			row = append(row, number(o.over(ours, direct, added), 3), number(o.over(peer, direct, added), 3),
				number(o.addedRatio(added), 2))
		}
		rows = append(rows, append(row, goal(o.scenario.goal)))
	}
	table(w, "Added time to first byte", rows)
}

func writeMemory(w io.Writer, outcomes []*outcome) {
	rows := [][]string{{"figure", "workers", "sluice", "smg", "ratio", "goal"}}
	row := func(o *outcome, what, unit string, f func(sample) float64, limit float64) {
		text := "-"
		if limit > 0 {
			text = fmt.Sprintf("≤ %v %s", limit, unit)
		}
		rows = append(rows, []string{what + ", " + unit, o.scenario.size.String(),
			number(o.median(ours, f), 1), number(o.median(peer, f), 1), number(o.ratio(f), 2), text})
	}
	memory := func(x sample) float64 { return x.memory }
	for _, o := range outcomes {
		switch o.scenario.kind {
		case kindStreams:
			what, limit := fmt.Sprintf("memory of one of %d silent streams", o.scenario.streams), goalStreamKiB
			if o.scenario.grpc {
				what, limit = what+" by gRPC", 0
			}
			row(o, what, "KiB", memory, limit)
		case kindIdle:
			many := o.scenario.size.workers() >= 1000
			restGoal, cpuGoal := goalRestMB, 0.0
			if many {
				restGoal, cpuGoal = 0, goalIdleCPU
			}
			row(o, "memory at rest", "MB", memory, restGoal)
			row(o, "CPU at rest", "% of a core", func(x sample) float64 { return x.cpu }, cpuGoal)
		}
	}
	table(w, "Memory, and CPU without requests", rows)
}

// writeGoals says of each goal whether this run met it.
func writeGoals(w io.Writer, outcomes []*outcome) {
	rows := [][]string{{"goal", "limit", "figure", "met"}}
	add := func(what string, limit, figure float64) {
		met := "no"
		switch {
		case math.IsNaN(figure):
			return
		case figure <= limit:
			met = "yes"
		}
		rows = append(rows, []string{what, fmt.Sprint(limit), number(figure, 2), met})
	}
	cpu := func(x sample) float64 { return x.cpu }
	for _, o := range outcomes {
		s := o.scenario
		switch {
		case s.kind == kindLoad && s.goal > 0:
			add(s.name+": CPU per request, of smg's", s.goal, o.ratio(cpu))
		case s.kind == kindFirst && s.goal > 0:
			add(s.name+": added first byte p50, of smg's", s.goal, o.addedRatio(func(a, b sample) float64 { return a.first50 - b.first50 }))
			add(s.name+": added first byte p99, of smg's", s.goal, o.addedRatio(func(a, b sample) float64 { return a.first99 - b.first99 }))
		case s.kind == kindStreams && s.grpc:
			add(s.name+": memory of a silent stream, of smg's", goalStreamGRPC, o.ratio(func(x sample) float64 { return x.memory }))
		case s.kind == kindStreams:
			add(s.name+": KiB per silent stream", goalStreamKiB, o.median(ours, func(x sample) float64 { return x.memory }))
		case s.kind == kindGrowth:
			add(fmt.Sprintf("%s: CPU per request with %v workers, of that with %v", s.name, s.size, s.few), goalGrowth, o.growth(ours))
		case s.kind == kindIdle && s.size.workers() < 1000:
			add(s.name+": MB at rest", goalRestMB, o.median(ours, func(x sample) float64 { return x.memory }))
		case s.kind == kindIdle:
			add(s.name+": % of a core at rest", goalIdleCPU, o.median(ours, cpu))
		}
	}
	table(w, "Goals", rows)
}

func (s scenario) label() string { return s.name + ": " + s.what }

func ofKind(outcomes []*outcome, k kind) []*outcome {
	return slices.DeleteFunc(slices.Clone(outcomes), func(o *outcome) bool { return o.scenario.kind != k })
}

// median of a figure over the rounds; NaN if there is none.
func (o *outcome) median(name string, f func(sample) float64) float64 {
	var xs []float64
	for _, x := range o.samples[name] {
		xs = append(xs, f(x))
	}
	return median(xs)
}

// ratio of our figure to the peer's.
func (o *outcome) ratio(f func(sample) float64) float64 {
	return o.over(ours, peer, func(a, b sample) float64 { return f(a) / f(b) })
}

// over is the median of what f makes of two targets' samples of one round.
func (o *outcome) over(name, base string, f func(a, b sample) float64) float64 {
	var xs []float64
	for i := range min(len(o.samples[name]), len(o.samples[base])) {
		xs = append(xs, f(o.samples[name][i], o.samples[base][i]))
	}
	return median(xs)
}

// addedRatio is what ours adds to direct, as a part of what the peer adds. The
// medians are divided, not each round: a difference of differences can be near
// zero in one round.
func (o *outcome) addedRatio(added func(a, b sample) float64) float64 {
	return o.over(ours, direct, added) / o.over(peer, direct, added)
}

func median(xs []float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	xs = slices.Sorted(slices.Values(xs))
	n := len(xs)
	return (xs[(n-1)/2] + xs[n/2]) / 2
}

func number(x float64, digits int) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "-"
	}
	return fmt.Sprintf("%.*f", digits, x)
}

func goal(limit float64) string {
	if limit == 0 {
		return "-"
	}
	return fmt.Sprintf("≤ %v", limit)
}
