package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// AdminURL is the admin API's base URL, "" without one.
func (f *Fleet) AdminURL() string { return f.adminURL }

func (f *Fleet) startAdmin(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("cannot start the simulated fleet's admin API: %w", err)
	}
	f.adminURL = "http://" + ln.Addr().String()
	f.admin = &http.Server{Handler: f.adminHandler(), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second}
	f.adminEnd.Go(func() { _ = f.admin.Serve(ln) })
	return nil
}

func (f *Fleet) stopAdmin() {
	if f.admin != nil {
		_ = f.admin.Close()
		f.adminEnd.Wait()
	}
}

// AdminHelp lists the routes of the admin API.
const AdminHelp = `Admin API of the simulated engines. {id} is a worker's id, or "all".

GET    /sim/workers                  all workers with their counters
GET    /sim/workers/{id}             one of them
GET    /sim/workers/{id}/requests    its last requests; ?bodies with their bodies, ?probes the health checks instead
GET    /sim/violations               what a router must never do, and did
POST   /sim/workers/{id}/fault       add a fault: key=value,key=value (or JSON)
DELETE /sim/workers/{id}/fault       end all its faults
POST   /sim/workers/{id}/timing      {"prefill_time":"3s","prefill_rate":0,"decode_step":"6ms",...}: what is left out is zero
POST   /sim/workers/{id}/kill        the process is gone at once; /terminate: as by SIGTERM; /stop: after its requests
POST   /sim/workers/{id}/restart     after kill, terminate or stop, at the same address
POST   /sim/workers/{id}/freeze      it accepts and answers nothing; /thaw ends it
POST   /sim/workers/{id}/wedge       its server answers, its scheduler does nothing; /unwedge ends it
POST   /sim/workers/{id}/refuse      it refuses connections; /admit ends it
POST   /sim/workers/{id}/kv-lie      KV events tell lies from now on: kind=KIND,key=value; DELETE: the truth
POST   /sim/workers/{id}/kv-clear    empty the prefix cache; events tell of it with the next request's step
POST   /sim/workers/{id}/kv-restart  the same without telling, and events are numbered from 0 again
POST   /sim/workers/{id}/reset       forget requests and counters
`

// workerInfo is a worker as the admin API and the command show it.
type workerInfo struct {
	ID            string      `json:"id"`
	Role          Role        `json:"role"`
	Backend       Backend     `json:"backend"`
	Connector     Connector   `json:"connector,omitempty"`
	URL           string      `json:"url"`
	BootstrapPort int         `json:"bootstrap_port,omitempty"`
	Running       bool        `json:"running"`
	KVEvents      []kvSource  `json:"kv_events,omitempty"`
	Stats         *Stats      `json:"stats,omitempty"`
	Ranks         []RankState `json:"ranks,omitempty"`
}

// kvSource is where a rank tells of its cache.
type kvSource struct {
	Rank     int    `json:"rank"`
	Endpoint string `json:"endpoint"`
	Replay   string `json:"replay_endpoint,omitempty"`
}

func (w *Worker) info(stats bool) workerInfo {
	i := workerInfo{ID: w.id, Role: w.role, Backend: w.opt.Backend, Connector: w.opt.Connector, URL: w.URL(), BootstrapPort: w.BootstrapPort(), Running: w.Running()}
	for rank := range w.eventPorts {
		if e := w.KVEndpoint(rank); e != "" {
			i.KVEvents = append(i.KVEvents, kvSource{rank, e, w.KVReplayEndpoint(rank)})
		}
	}
	if stats {
		s := w.Stats()
		i.Stats, i.Ranks = &s, w.Ranks()
	}
	return i
}

// timingText is Timing with durations as text.
type timingText struct {
	PrefillTime      string  `json:"prefill_time"`
	PrefillRate      float64 `json:"prefill_rate"`
	Transfer         string  `json:"transfer"`
	FirstToken       string  `json:"first_token"`
	DecodeStep       string  `json:"decode_step"`
	DecodePerRequest string  `json:"decode_per_request"`
	DecodePerKTokens string  `json:"decode_per_ktokens"`
	PrefillStep      string  `json:"prefill_step"`
	OutputTokens     int     `json:"output_tokens"`
}

// parseTiming reads a whole Timing; what it leaves out is zero.
func parseTiming(b []byte) (Timing, error) {
	var x timingText
	if err := json.Unmarshal(b, &x); err != nil {
		return Timing{}, fmt.Errorf("cannot read timing: %w", err)
	}
	t := Timing{PrefillRate: x.PrefillRate, OutputTokens: x.OutputTokens}
	for _, d := range []struct {
		name, text string
		to         *time.Duration
	}{
		{"prefill_time", x.PrefillTime, &t.PrefillTime}, {"transfer", x.Transfer, &t.Transfer},
		{"first_token", x.FirstToken, &t.FirstToken}, {"decode_step", x.DecodeStep, &t.DecodeStep},
		{"decode_per_request", x.DecodePerRequest, &t.DecodePerRequest},
		{"decode_per_ktokens", x.DecodePerKTokens, &t.DecodePerKTokens}, {"prefill_step", x.PrefillStep, &t.PrefillStep},
	} {
		if d.text == "" {
			continue
		}
		v, err := time.ParseDuration(d.text)
		if err != nil || v < 0 {
			return Timing{}, fmt.Errorf("cannot read timing %s=%q: want a duration such as 3s", d.name, d.text)
		}
		*d.to = v
	}
	return t, nil
}

func (f *Fleet) adminHandler() http.Handler {
	mux := http.NewServeMux()
	fail := func(rw http.ResponseWriter, status int, err error) {
		writeJSON(rw, status, object{"error": err.Error()})
	}
	// each calls do for the worker named in the path, or for all.
	each := func(do func(*Worker, []byte, *http.Request) error) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, 16<<20))
			if err != nil {
				fail(rw, http.StatusBadRequest, err)
				return
			}
			workers := f.named(r.PathValue("id"))
			if workers == nil {
				fail(rw, http.StatusNotFound, fmt.Errorf("no worker %q", r.PathValue("id")))
				return
			}
			for _, w := range workers {
				if err := do(w, body, r); err != nil {
					fail(rw, http.StatusBadRequest, err)
					return
				}
			}
			writeJSON(rw, http.StatusOK, object{"ok": true})
		}
	}
	mux.HandleFunc("GET /sim/workers", func(rw http.ResponseWriter, _ *http.Request) {
		list := []workerInfo{}
		for _, w := range f.Workers() {
			list = append(list, w.info(true))
		}
		writeJSON(rw, http.StatusOK, object{"workers": list, "open_rooms": f.OpenRooms(), "violated": f.Violated()})
	})
	mux.HandleFunc("GET /sim/workers/{id}", func(rw http.ResponseWriter, r *http.Request) {
		w := f.Worker(r.PathValue("id"))
		if w == nil {
			fail(rw, http.StatusNotFound, fmt.Errorf("no worker %q", r.PathValue("id")))
			return
		}
		writeJSON(rw, http.StatusOK, w.info(true))
	})
	mux.HandleFunc("GET /sim/workers/{id}/requests", func(rw http.ResponseWriter, r *http.Request) {
		list := []Request{}
		for _, w := range f.named(r.PathValue("id")) {
			if r.URL.Query().Has("probes") {
				list = append(list, w.Probes()...)
			} else {
				list = append(list, w.Requests()...)
			}
		}
		if !r.URL.Query().Has("bodies") {
			for i := range list {
				list[i].Body = nil
			}
		}
		writeJSON(rw, http.StatusOK, object{"requests": list})
	})
	mux.HandleFunc("GET /sim/violations", func(rw http.ResponseWriter, _ *http.Request) {
		writeJSON(rw, http.StatusOK, object{"violated": f.Violated(), "violations": f.Violations()})
	})
	mux.HandleFunc("POST /sim/workers/{id}/fault", each(func(w *Worker, body []byte, _ *http.Request) error {
		var fault Fault
		var err error
		if len(body) > 0 && (body[0] == '{' || body[0] == '"') {
			fault, err = ParseFaultJSON(body)
		} else {
			fault, err = ParseFault(string(body))
		}
		if err == nil {
			w.AddFault(fault)
		}
		return err
	}))
	mux.HandleFunc("DELETE /sim/workers/{id}/fault", each(func(w *Worker, _ []byte, _ *http.Request) error {
		w.ClearFaults()
		return nil
	}))
	mux.HandleFunc("POST /sim/workers/{id}/kv-lie", each(func(w *Worker, body []byte, _ *http.Request) error {
		lie, err := ParseKVLie(string(body))
		if err != nil {
			return err
		}
		return w.AddKVLie(lie)
	}))
	mux.HandleFunc("DELETE /sim/workers/{id}/kv-lie", each(func(w *Worker, _ []byte, _ *http.Request) error {
		w.ClearKVLies()
		return nil
	}))
	mux.HandleFunc("POST /sim/workers/{id}/timing", each(func(w *Worker, body []byte, _ *http.Request) error {
		t, err := parseTiming(body)
		if err == nil {
			w.SetTiming(t)
		}
		return err
	}))
	mux.HandleFunc("POST /sim/workers/{id}/reset", each(func(w *Worker, _ []byte, _ *http.Request) error {
		w.ResetLog()
		return nil
	}))
	for name, do := range map[string]func(*Worker) error{
		"kill":       func(w *Worker) error { w.Kill(); return nil },
		"terminate":  func(w *Worker) error { w.Terminate(); return nil },
		"restart":    (*Worker).Restart,
		"refuse":     func(w *Worker) error { w.Refuse(); return nil },
		"admit":      (*Worker).Admit,
		"freeze":     func(w *Worker) error { w.Freeze(); return nil },
		"thaw":       func(w *Worker) error { w.Thaw(); return nil },
		"wedge":      func(w *Worker) error { w.Wedge(); return nil },
		"unwedge":    func(w *Worker) error { w.Unwedge(); return nil },
		"kv-clear":   func(w *Worker) error { w.ClearCache(); return nil },
		"kv-restart": func(w *Worker) error { w.RestartCache(); return nil },
	} {
		mux.HandleFunc("POST /sim/workers/{id}/"+name, each(func(w *Worker, _ []byte, _ *http.Request) error { return do(w) }))
	}
	mux.HandleFunc("GET /{$}", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(rw, AdminHelp) // the client may have disconnected
	})
	mux.HandleFunc("POST /sim/workers/{id}/stop", each(func(w *Worker, _ []byte, r *http.Request) error { return w.Stop(r.Context()) }))
	return mux
}

// named returns the worker of that id, all workers for "all", nil if there is none.
func (f *Fleet) named(id string) []*Worker {
	if id == "all" {
		return f.Workers()
	}
	if w := f.Worker(id); w != nil {
		return []*Worker{w}
	}
	return nil
}
