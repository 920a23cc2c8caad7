package sim

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A subscriber gets what it subscribed to, and one that does not read loses batches but
// holds nobody up.
func TestSubscribers(t *testing.T) {
	w := eventFleet(t, WorkerOptions{KVEvents: &KVEvents{Topic: "kv@a", HWM: 2}})
	right := subscribe(t, w, 0, "kv@")
	other := subscribe(t, w, 0, "kv@b")
	complete(t, w, idsBody(1, 17, ""))
	right.batch()
	// A command, as peers of ZMTP 3.1 send it, and a ping that is answered after it.
	if _, err := other.conn.Write(appendCommand(appendCommand(nil, "SUBSCRIBE", []byte("kv@a")), "PING", []byte("\x00\x00here"))); err != nil {
		t.Fatal(err)
	}
	if f := other.frames(); len(f) != 1 || string(f[0]) != "\x04PONGhere" {
		t.Fatalf("the ping's answer is %q", f)
	}
	complete(t, w, idsBody(100, 17, ""))
	if b := other.batch(); b.seq != 1 {
		t.Errorf("it got batch %d first", b.seq)
	}
	right.batch()
	// Frozen, two batches wait for each; the third is lost.
	p := w.current.Load().publishers[0]
	w.Freeze()
	for range 5 {
		p.publish([]kvEvent{{kind: allBlocksCleared}})
	}
	w.Thaw()
	p.publish([]kvEvent{{kind: allBlocksCleared}})
	var got []uint64
	for len(got) == 0 || got[len(got)-1] < 6 && len(got) < 4 {
		got = append(got, right.batch().seq)
		if got[len(got)-1] < 7 && len(got) == 2 {
			break
		}
	}
	if got[0] != 2 || got[1] != 3 {
		t.Errorf("of the batches 2 to 6 it got %v", got)
	}
	// What leaves is forgotten.
	right.conn.Close()
	other.conn.Close()
	if err := w.Wait(testContext(t), func(s Stats) bool { return s.Subscribers == 0 }); err != nil {
		t.Error(err)
	}
}

// Peers that do not speak the protocol, or announce more than they may send, are left.
func TestPeersThatAreNoZMTP(t *testing.T) {
	w := eventFleet(t, WorkerOptions{})
	for name, bytes := range map[string][]byte{
		"http":          []byte("GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: something that is long enough\r\n\r\n"),
		"huge greeting": append(zmtpGreeting(), zmtpCommand|zmtpLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"no ready":      append(zmtpGreeting(), appendCommand(nil, "ERROR", nil)...),
		"empty command": append(zmtpGreeting(), zmtpCommand, 0),
	} {
		for _, endpoint := range []string{w.KVEndpoint(0), w.KVReplayEndpoint(0)} {
			c, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
			if err != nil {
				t.Fatal(err)
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = c.Write(bytes)
			if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("%s: the connection stays open: %v", name, err)
			}
			c.Close()
		}
	}
}

// The cache's restart is told by nothing but the sequence; all can be driven from outside.
func TestKVEventsFromOutside(t *testing.T) {
	f := start(t, Options{Regular: 1, AdminAddr: "127.0.0.1:0", Worker: WorkerOptions{Backend: VLLM, KVEvents: &KVEvents{}}})
	w := f.Regular(0)
	s := subscribe(t, w, 0, "")
	do := func(method, path, body string) int {
		req, _ := http.NewRequestWithContext(testContext(t), method, f.AdminURL()+"/sim/workers/regular-0/"+path, strings.NewReader(body))
		return send(client(t), req).status
	}
	complete(t, w, idsBody(100, 33, ""))
	first := s.batch()
	if n := do("POST", "kv-restart", ""); n != 200 || w.CachedBlocks(0) != 0 {
		t.Errorf("kv-restart: %d", n)
	}
	complete(t, w, idsBody(100, 33, ""))
	if b := s.batch(); b.seq != 0 || b.kinds() != "BlockStored 2" || !reflect.DeepEqual(b.event(0)["block_hashes"], first.event(0)["block_hashes"]) {
		t.Errorf("after the restart came %+v", b)
	}
	if n := do("POST", "kv-clear", ""); n != 200 || w.CachedBlocks(0) != 0 {
		t.Errorf("kv-clear: %d", n)
	}
	for text, want := range map[string]int{"kind=nan": 200, "kind=truth": 400, "kind": 400, "kind=tokens": 400, "kind=nan,count=-1": 400, "kind=nan,colour=red": 400, "kind=form,value=x": 400} {
		if n := do("POST", "kv-lie", text); n != want {
			t.Errorf("%s: %d, want %d", text, n, want)
		}
	}
	complete(t, w, idsBody(100, 33, ""))
	if b := s.batch(); b.kinds() != "AllBlocksCleared 0, BlockStored 2" || !math.IsNaN(b.time) {
		t.Errorf("after the clear came %+v", b)
	}
	if n := do("DELETE", "kv-lie", ""); n != 200 {
		t.Errorf("DELETE: %d", n)
	}
	complete(t, w, idsBody(200, 33, ""))
	if b := s.batch(); math.IsNaN(b.time) {
		t.Error("it lies still")
	}
	var v struct {
		Events []kvSource `json:"kv_events"`
	}
	req, _ := http.NewRequest(http.MethodGet, f.AdminURL()+"/sim/workers/regular-0", nil)
	if r := send(client(t), req); json.Unmarshal([]byte(r.body), &v) != nil || len(v.Events) != 1 || v.Events[0].Endpoint != w.KVEndpoint(0) {
		t.Errorf("the admin API tells of %+v", v.Events)
	}
}

// Kept batches and waiting ones are bounded in bytes too.
func TestEventsAreBounded(t *testing.T) {
	w := eventFleet(t, WorkerOptions{})
	p := w.current.Load().publishers[0]
	s := &subscriber{wake: make(chan struct{}, 1), topics: []string{""}}
	p.mu.Lock()
	p.subscribers = append(p.subscribers, s)
	p.mu.Unlock()
	big := kvEvent{kind: blockStored, hashes: []uint64{1}, ids: make([]uint32, 8<<20), size: 1, scope: &cacheScope{}}
	for range 12 {
		p.publish([]kvEvent{big})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keptBytes > mostEventBytes || len(p.kept) > 8 || s.waiting > mostEventBytes || len(s.queue) > 8 {
		t.Errorf("%d batches of %d bytes are kept, %d of %d wait", len(p.kept), p.keptBytes, len(s.queue), s.waiting)
	}
	p.subscribers = nil
}

// A killed worker must end its subscribers' connections, a terminated one too.
func TestEventsEndWithTheEngine(t *testing.T) {
	for name, end := range map[string]func(*Worker){
		"kill": (*Worker).Kill, "terminate": (*Worker).Terminate, "frozen": func(w *Worker) { w.Freeze(); w.Kill() },
		"stop": func(w *Worker) { _ = w.Stop(context.Background()) },
	} {
		w := eventFleet(t, WorkerOptions{})
		s := subscribe(t, w, 0, "")
		end(w)
		if _, err := s.read(); err == nil {
			t.Errorf("%s: the connection is open", name)
		}
	}
}

func FuzzReadMessage(f *testing.F) {
	f.Add(appendMessage(nil, [][]byte{{1, 2}, make([]byte, 300)}))
	f.Add(appendCommand(nil, "PING", []byte("\x00\x00x")))
	f.Add([]byte{zmtpLong, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(_ *testing.T, b []byte) {
		r := bufio.NewReader(strings.NewReader(string(b)))
		for {
			if _, err := readMessage(r, func(string, []byte) error { return nil }); err != nil {
				return
			}
		}
	})
}
