package sim

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"
)

// Each lie must be told, and end with its count.
func TestKVLies(t *testing.T) {
	truth := func(b batch) bool { return b.kinds() == "BlockStored 2" && b.event(0)["block_size"] == uint64(16) }
	told := map[string]bool{}
	for _, tc := range []struct {
		lie  string
		want func(t *testing.T, s *peer) // reads what the lie makes of the batch; nil: nothing comes
	}{
		{"kind=drop", nil},
		{"kind=lose", nil},
		{"kind=silent", nil},
		{"kind=topic,value=elsewhere", nil},
		{"kind=repeat", func(t *testing.T, s *peer) {
			if a, b := s.batch(), s.batch(); a.seq != 1 || b.seq != 1 {
				t.Errorf("batches %d and %d came", a.seq, b.seq)
			}
		}},
		{"kind=jump", func(t *testing.T, s *peer) {
			if b := s.batch(); b.seq != 1<<63+1 {
				t.Errorf("the sequence is %d", b.seq)
			}
		}},
		{"kind=rewind", func(t *testing.T, s *peer) {
			if b := s.batch(); b.seq != 0 {
				t.Errorf("the sequence is %d", b.seq)
			}
			p := s.w.current.Load().publishers[0]
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.kept) != 1 || p.kept[0].seq != 0 {
				t.Errorf("kept are %v", p.kept)
			}
		}},
		{"kind=block-size,value=0", func(t *testing.T, s *peer) {
			if b := s.batch(); b.event(0)["block_size"] != uint64(0) {
				t.Errorf("the batch is %+v", b)
			}
		}},
		{"kind=tokens,value=100001", func(t *testing.T, s *peer) {
			if b := s.batch(); len(b.event(0)["token_ids"].([]any)) != 100001 {
				t.Errorf("there are %d token ids", len(b.event(0)["token_ids"].([]any)))
			}
		}},
		{"kind=tokens,value=31", func(t *testing.T, s *peer) {
			if b := s.batch(); len(b.event(0)["token_ids"].([]any)) != 31 {
				t.Errorf("there are %d token ids", len(b.event(0)["token_ids"].([]any)))
			}
		}},
		{"kind=unknown", func(t *testing.T, s *peer) {
			if b := s.batch(); b.kinds() != "BlockPondered 2, BlockStored 2" {
				t.Errorf("the batch is %s", b.kinds())
			}
		}},
		{"kind=remove", func(t *testing.T, s *peer) {
			if b := s.batch(); b.kinds() != "BlockRemoved 2, BlockStored 2" {
				t.Errorf("the batch is %s", b.kinds())
			}
		}},
		{"kind=nan", func(t *testing.T, s *peer) {
			if b := s.batch(); !math.IsNaN(b.time) {
				t.Errorf("the time is %v", b.time)
			}
		}},
		{"kind=dp-rank,value=-1", func(t *testing.T, s *peer) {
			if b := s.batch(); b.rank != int64(-1) {
				t.Errorf("the rank is %v", b.rank)
			}
		}},
		{"kind=frames,value=1", func(t *testing.T, s *peer) {
			if n := len(s.frames()); n != 1 {
				t.Errorf("%d frames came", n)
			}
		}},
		{"kind=frames,value=9", func(t *testing.T, s *peer) {
			if n := len(s.frames()); n != 9 {
				t.Errorf("%d frames came", n)
			}
		}},
		{"kind=huge", func(t *testing.T, s *peer) {
			if _, err := s.read(); err == nil || !strings.Contains(err.Error(), fmt.Sprint(1<<40)) {
				t.Errorf("a frame came: %v", err)
			}
		}},
		{"kind=deep", func(t *testing.T, s *peer) {
			if f := s.frames(); len(f[2]) != 100001 || f[2][0] != 0x91 || f[2][99999] != 0x91 {
				t.Errorf("the payload has %d bytes", len(f[2]))
			}
		}},
		{"kind=cut", func(t *testing.T, s *peer) {
			if f := s.frames(); len(f[2]) < 20 || f[2][0] != 0x93 || f[2][len(f[2])-1] == 0 {
				t.Errorf("the payload is %x", f[2])
			}
		}},
		{"kind=own-parent", func(t *testing.T, s *peer) {
			if e := s.batch().event(0); e["parent_block_hash"] != e["block_hashes"].([]any)[0] {
				t.Errorf("the event is %+v", e)
			}
		}},
		{"kind=lost-parent", func(t *testing.T, s *peer) {
			if e := s.batch().event(0); e["parent_block_hash"] == nil || e["parent_block_hash"] == e["block_hashes"].([]any)[0] {
				t.Errorf("the event is %+v", e)
			}
		}},
		{"kind=twice", func(t *testing.T, s *peer) {
			if b := s.batch(); b.kinds() != "BlockStored 4" || len(b.event(0)["token_ids"].([]any)) != 64 {
				t.Errorf("the batch is %+v", b)
			}
		}},
		{"kind=bytes", func(t *testing.T, s *peer) {
			if e := s.batch().event(0); len(e["block_hashes"].([]any)[0].([]byte)) != 32 {
				t.Errorf("the event is %+v", e)
			}
		}},
		{"kind=form,value=array", func(t *testing.T, s *peer) {
			if e, ok := s.batch().events[0].([]any); !ok || len(e) != 11 {
				t.Errorf("the event is %+v", e)
			}
		}},
		{"kind=trickle,pause=1us", func(t *testing.T, s *peer) {
			if b := s.batch(); !truth(b) {
				t.Errorf("the batch is %+v", b)
			}
		}},
	} {
		t.Run(tc.lie, func(t *testing.T) {
			w := eventFleet(t, WorkerOptions{KVEvents: &KVEvents{Topic: "kv"}})
			lie, err := ParseKVLie(tc.lie + ",skip=1,count=1,rank=0")
			if err != nil {
				t.Fatal(err)
			}
			told[lie.Kind] = true
			if err := w.AddKVLie(lie); err != nil {
				t.Fatal(err)
			}
			s := subscribe(t, w, 0, "kv")
			complete(t, w, idsBody(100, 33, ""))
			if b := s.batch(); !truth(b) {
				t.Errorf("the batch before is %+v", b)
			}
			complete(t, w, idsBody(200, 33, ""))
			if tc.want != nil {
				tc.want(t, s)
			}
			if lie.Kind == "huge" {
				return
			}
			complete(t, w, idsBody(300, 33, ""))
			if b := s.batch(); !truth(b) {
				t.Errorf("the batch behind is %+v", b)
			}
		})
	}
	t.Run("close", func(t *testing.T) {
		told["close"] = true
		w := eventFleet(t, WorkerOptions{})
		if err := w.AddKVLie(KVLie{Kind: "close", Count: 1}); err != nil {
			t.Fatal(err)
		}
		s := subscribe(t, w, 0, "")
		complete(t, w, idsBody(100, 33, ""))
		s.batch()
		if _, err := s.read(); err == nil {
			t.Error("the connection is open")
		}
		if err := w.Wait(testContext(t), func(s Stats) bool { return s.Subscribers == 0 }); err != nil {
			t.Fatal(err)
		}
		s = subscribe(t, w, 0, "")
		complete(t, w, idsBody(200, 33, ""))
		if b := s.batch(); b.seq != 1 {
			t.Errorf("the next batch is %d", b.seq)
		}
	})
	t.Run("connections", func(t *testing.T) {
		w := eventFleet(t, WorkerOptions{})
		for kind, want := range map[string]string{"mute": "", "hang-up": "", "http": "HTTP/1.1"} {
			told[kind] = true
			w.ClearKVLies()
			if err := w.AddKVLie(KVLie{Kind: kind, Count: 1}); err != nil {
				t.Fatal(err)
			}
			c, err := net.Dial("tcp", strings.TrimPrefix(w.KVEndpoint(0), "tcp://"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write(zmtpGreeting())
			if kind == "mute" { // it takes what comes, and says nothing until the peer is gone
				_ = c.(*net.TCPConn).CloseWrite()
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			got, _ := io.ReadAll(c)
			if !strings.HasPrefix(string(got), want) || want == "" && len(got) > 0 {
				t.Errorf("%s: %q came", kind, got)
			}
			c.Close()
		}
		subscribe(t, w, 0, "") // and then it is as ever
	})
	t.Run("replays", func(t *testing.T) {
		for kind, want := range map[string]string{"replay-empty": "end", "replay-slow": "0 1 2 3 end", "replay-cut": "0 1", "replay-endless": "0 1 2 3 0 1 2 3 0", "replay-reverse": "3 2 1 0 end",
			"replay-form": "0 1 2 3 end", "replay-garbage": "? ?", "replay-mute": ""} {
			told[kind] = true
			w := eventFleet(t, WorkerOptions{})
			for i := range 4 {
				complete(t, w, idsBody(100*i, 33, ""))
			}
			if err := w.AddKVLie(KVLie{Kind: kind, Pause: time.Millisecond, Count: 1}); err != nil {
				t.Fatal(err)
			}
			d := connect(t, w.KVReplayEndpoint(0), "DEALER")
			d.send(nil, make([]byte, 8))
			var got []string
			for len(got) < len(strings.Fields(want)) {
				f := d.frames()
				if len(f) == 1 {
					got = append(got, string(f[0]))
					continue
				}
				if n := len(f); n != 4 && kind != "replay-form" || n != 3 && kind == "replay-form" {
					t.Errorf("%s: a reply of %d frames", kind, n)
				}
				if seq := binary.BigEndian.Uint64(f[len(f)-2]); seq == math.MaxUint64 {
					got = append(got, "end")
				} else {
					got = append(got, fmt.Sprint(seq))
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s: %v came", kind, got)
			}
			if kind == "replay-cut" || kind == "replay-mute" { // nothing more comes: the next request is answered
				d.send(nil, binary.BigEndian.AppendUint64(nil, 99))
				if f := d.frames(); binary.BigEndian.Uint64(f[2]) != math.MaxUint64 {
					t.Errorf("%s: then %x came", kind, f)
				}
			}
		}
	})
	for kind := range lieKinds {
		if !told[kind] {
			t.Errorf("no test tells %s", kind)
		}
		if !strings.Contains(KVLieHelp, kind) {
			t.Errorf("the help does not name %s", kind)
		}
	}
}
