//go:build realengine

package main

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// core is the process of an engine that has its scheduler. Its title names it.
func (e *Engine) core(t testing.TB) int {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		s := string(b)
		fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		title, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if len(fields) > 2 && fields[2] == strconv.Itoa(e.pid) && strings.Contains(string(title), "EngineCore") {
			return pid
		}
	}
	t.Fatalf("%s has no process of that name", e.Role)
	return 0
}

// healthy is a simulated engine beside the real one, to which requests can move.
func healthy(t testing.TB) (url string) {
	t.Helper()
	out := &logBuffer{}
	cmd := exec.Command(binary, "sim", "--json", "--backend", "vllm", "--model", Model, "--regular", "1", "--prefill", "0", "--decode", "0", "--load")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	eventually(t, "the simulated engine is ready", func() string {
		for _, line := range out.lines() {
			var v struct {
				URL   string `json:"url"`
				Ready bool   `json:"ready"`
			}
			if json.Unmarshal([]byte(line), &v) != nil {
				continue
			}
			if url = cmp.Or(url, v.URL); v.Ready {
				return ""
			}
		}
		return "it says: " + strings.Join(out.lines(), "\n")
	})
	return url
}

// An engine whose core is stopped, while its API server answers /health and /metrics, is
// found; so is one that is stopped whole. Requests that it has not begun to answer are
// served elsewhere, the stream that it has begun ends with an error, and it is used again
// when it goes on.
func TestWholeWedgedEngine(t *testing.T) {
	for name, which := range map[string]func() int{
		"its core alone": func() int { return one.core(t) },
		"all of it":      func() int { return -one.pid },
	} {
		t.Run(name, func(t *testing.T) {
			r := startWhole(t, "--worker-urls", healthy(t), "--policy", "round_robin")
			waitIdle(t, one)
			var stream *call
			for stream == nil { // at the engine
				c := request{route: chat, prompt: prompt(20), tokens: 900, stream: true}.send(t, r.url)
				c.waitBegun()
				if !c.over() && scrape(t, one.URL())["vllm:num_requests_running"] > 0 {
					stream = c
				}
			}
			pid := which()
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			goOn := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
			defer goOn()
			stopped := time.Now()
			var calls []*call
			for i := range 8 {
				calls = append(calls, request{route: chat, prompt: prompt(60), tokens: 16, stream: i%2 == 0}.send(t, r.url))
			}
			for _, c := range calls {
				if a := c.wait(); a.status != 200 || a.whole(chat) != "" {
					t.Errorf("a request: %s", a)
				}
			}
			moved := time.Since(stopped).Round(10 * time.Millisecond)
			if a := stream.wait(); a.whole(chat) == "" {
				t.Errorf("the stream of the stopped engine is whole: %s", a)
			}
			report.say(t, "%s stopped: its 4 of 8 requests were served elsewhere after %s, its stream ended after %s", name, moved, time.Since(stopped).Round(10*time.Millisecond))
			wedged := func() bool { return strings.Contains(strings.Join(r.log.lines(), "\n"), "rank is wedged") }
			if !wedged() {
				t.Errorf("nothing was said: %s", r.tail())
			}
			goOn()
			r.waitReady()
			report.say(t, "%s: used again", name)
		})
	}
}

// An engine that is slowed down to a small part of its speed, with more prompts than it
// can run at once and long answers that are not streamed, is none that hangs.
func TestWholeSlowEngineIsNoHang(t *testing.T) {
	r := startWhole(t, "--worker-wedge-secs", "1", "--disable-retries")
	waitIdle(t, one)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		pid := one.core(t)
		for {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			select {
			case <-stop:
				_ = syscall.Kill(pid, syscall.SIGCONT)
				return
			case <-time.After(300 * time.Millisecond):
			}
			_ = syscall.Kill(pid, syscall.SIGCONT)
			time.Sleep(100 * time.Millisecond)
		}
	}()
	start := time.Now()
	var calls []*call
	for range 3 * MaxSeqs {
		calls = append(calls, request{route: chat, prompt: prompt(150), tokens: 60}.send(t, r.url))
	}
	calls = append(calls, request{route: chat, prompt: prompt(20), tokens: 400}.send(t, r.url))
	for _, c := range calls {
		if a := c.wait(); a.status != 200 {
			t.Errorf("a request: %s", a)
		}
	}
	close(stop)
	<-done
	if said := strings.Join(r.log.lines(), "\n"); strings.Contains(said, "wedged") {
		t.Errorf("it was taken for wedged: %s", r.tail())
	}
	report.say(t, "%d prompts on an engine that runs a quarter of the time: %s, none taken for a hang", len(calls), time.Since(start).Round(10*time.Millisecond))
}
