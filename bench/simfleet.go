package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// size is how many workers of each role a fleet has.
type size struct{ prefill, decode, regular int }

func (s size) workers() int { return s.prefill + s.decode + s.regular }

func (s size) String() string {
	if s.regular > 0 {
		return strconv.Itoa(s.regular)
	}
	return fmt.Sprintf("%d+%d", s.prefill, s.decode)
}

// worker is a simulated engine as the outside sees it.
type worker struct {
	url, addr     string
	bootstrapPort int
}

// simFleet is the simulator's process.
type simFleet struct {
	proc                     *process
	prefill, decode, regular []worker
	admin                    string
	grpc                     bool
}

// startSim starts the simulated engines, which take no time for anything.
func startSim(ctx context.Context, s *spawner, bin string, cpus []int, z size, grpc bool) (*simFleet, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe: %w", err)
	}
	proc, err := s.run("sim", cpus, in, bin, "sim", "--load", "--json", "--admin", "127.0.0.1:0",
		"--prefill", strconv.Itoa(z.prefill), "--decode", strconv.Itoa(z.decode), "--regular", strconv.Itoa(z.regular),
		"--prefill-rate", "0", "--decode-step", "0", "--decode-per-request", "0", "--grpc="+strconv.FormatBool(grpc))
	in.Close()
	if err != nil {
		out.Close()
		return nil, err
	}
	f := &simFleet{proc: proc, grpc: grpc}
	if err := f.read(out); err != nil {
		proc.stop()
		return nil, fmt.Errorf("cannot start the simulator: %w: %s", err, proc.lastWords())
	}
	// The command's own transfer takes 2 ms: not here.
	if err := f.timing(ctx, timing{}); err != nil {
		proc.stop()
		return nil, err
	}
	return f, nil
}

// read takes the lines that tell where the workers are.
func (f *simFleet) read(out *os.File) error {
	in := bufio.NewScanner(out)
	for in.Scan() {
		var line struct {
			Role          string `json:"role"`
			URL           string `json:"url"`
			BootstrapPort int    `json:"bootstrap_port"`
			Ready         bool   `json:"ready"`
			AdminURL      string `json:"admin_url"`
		}
		if err := json.Unmarshal(in.Bytes(), &line); err != nil {
			return fmt.Errorf("cannot read line %q: %w", in.Text(), err)
		}
		if line.Ready {
			f.admin = line.AdminURL
			go func() { // nobody reads on, and the simulator must not block
				_, _ = io.Copy(io.Discard, out)
				out.Close()
			}()
			return nil
		}
		u, err := url.Parse(line.URL)
		if err != nil {
			return fmt.Errorf("cannot read worker URL %q: %w", line.URL, err)
		}
		w := worker{url: line.URL, addr: u.Host, bootstrapPort: line.BootstrapPort}
		switch line.Role {
		case "prefill":
			f.prefill = append(f.prefill, w)
		case "decode":
			f.decode = append(f.decode, w)
		default:
			f.regular = append(f.regular, w)
		}
	}
	out.Close()
	return fmt.Errorf("no line \"ready\": %w", in.Err())
}

// timing is how slow the engines are; the zero value takes no time.
type timing struct {
	// DecodeStep is the time from one token to the next.
	DecodeStep time.Duration
}

func (f *simFleet) timing(ctx context.Context, t timing) error {
	body := fmt.Sprintf(`{"decode_step":%q}`, t.DecodeStep)
	if err := f.ask(ctx, http.MethodPost, "/sim/workers/all/timing", body, nil); err != nil {
		return fmt.Errorf("cannot set the engines' speed: %w", err)
	}
	return nil
}

// violations is how often the engines' contract was broken so far.
func (f *simFleet) violations(ctx context.Context) (int, error) {
	var v struct {
		Violated int `json:"violated"`
	}
	if err := f.ask(ctx, http.MethodGet, "/sim/violations", "", &v); err != nil {
		return 0, fmt.Errorf("cannot ask for violations: %w", err)
	}
	return v.Violated, nil
}

func (f *simFleet) ask(ctx context.Context, method, path, body string, into any) error {
	return ask(ctx, method, f.admin+path, body, into)
}

// ask is a call of some API that speaks JSON.
func ask(ctx context.Context, method, url, body string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Close = true
	if body != "" {
		r.Header.Set("Content-Type", "application/json") // smg refuses it without
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	b, err := io.ReadAll(io.LimitReader(a.Body, 64<<20))
	if err != nil {
		return err
	}
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: status %d: %.200s", method, url, a.StatusCode, b)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(b, into)
}
