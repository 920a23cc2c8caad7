package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// A batch as a real vLLM 0.32 sent it must be written byte for byte.
func TestEventBatchIsThatOfTheEngine(t *testing.T) {
	want, _ := hex.DecodeString("93cb41dac3399bfc674d918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657393cf43e0369513f4d3dccfeaf46ca0e213debfcf610900c2baa9d9bab1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc00601415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f70717273aa626c6f636b5f73697a6520a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797393c0c0c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e00")
	x := kvEvent{kind: blockStored, hashes: []uint64{0x43e0369513f4d3dc, 0xeaf46ca0e213debf, 0x610900c2baa9d9ba}, size: 32, scope: &cacheScope{}}
	for id := range uint32(96) {
		x.ids = append(x.ids, 20+id)
	}
	got := encoder{form: EventMap}.batch(nil, math.Float64frombits(0x41dac3399bfc674d), []kvEvent{x}, 0)
	if !slices.Equal(got, want) {
		t.Errorf("the batch is\n%x, want\n%x", got, want)
	}
}

// Numbers must be written as short as they can be, and come back.
func TestPackedNumbers(t *testing.T) {
	for _, v := range []int64{0, 1, 127, 128, 255, 256, 65535, 65536, math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64, -1, -32, -33, -128, -129, -32768, -32769, math.MinInt32, math.MinInt32 - 1, math.MinInt64} {
		got := unpacked(t, packInt(nil, v))
		if u, ok := got.(uint64); ok {
			got = int64(u)
		}
		if got != v {
			t.Errorf("%d came back as %v", v, got)
		}
	}
}

// What the cache does must be told in the order of the steps, from sequence 0.
func TestEventsFollowTheCache(t *testing.T) {
	w := eventFleet(t, WorkerOptions{Adapters: []string{"lora"}, DevMode: true, CacheBlocks: 10, KVEvents: &KVEvents{Topic: "kv@w0@m"}})
	s := subscribe(t, w, 0, "kv@")
	complete(t, w, idsBody(100, 70, ""))
	a := s.batch()
	if a.topic != "kv@w0@m" || a.seq != 0 || a.kinds() != "BlockStored 4" || a.rank != uint64(0) || math.Abs(a.time-float64(time.Now().Unix())) > 100 {
		t.Errorf("the first batch is %+v", a)
	}
	e := a.event(0)
	for name, want := range map[string]any{"parent_block_hash": nil, "block_size": uint64(16), "lora_id": nil, "lora_name": nil, "medium": "GPU",
		"extra_keys": []any{nil, nil, nil, nil}, "group_idx": uint64(0), "kv_cache_spec_kind": "full_attention"} {
		if got, ok := e[name]; !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if ids := e["token_ids"].([]any); len(ids) != 64 || ids[0] != uint64(100) || ids[63] != uint64(163) {
		t.Errorf("the token ids are %v", ids)
	}
	if _, has := e["session_id"]; has {
		t.Error("an event without a session has one")
	}
	hashes := e["block_hashes"].([]any)

	// A prompt that goes on: only its new block, behind the one before.
	complete(t, w, idsBody(100, 81, `,"session_id":"s-1"`))
	b := s.batch()
	if b.seq != 1 || b.kinds() != "BlockStored 1" || b.event(0)["parent_block_hash"] != hashes[3] || b.event(0)["session_id"] != "s-1" {
		t.Errorf("the second batch is %+v", b)
	}
	// The same again tells nothing; unless it is asked for everything.
	complete(t, w, idsBody(100, 81, ""))
	complete(t, w, idsBody(100, 81, `,"vllm_xargs":{"kv_cache_report_mode":"full"}`))
	if b := s.batch(); b.seq != 2 || b.kinds() != "BlockStored 5" || !reflect.DeepEqual(b.event(0)["block_hashes"].([]any)[:4], hashes) {
		t.Errorf("the report is %+v", b)
	}
	// A salt, in the first block's keys; an adapter, in all.
	complete(t, w, idsBody(100, 33, `,"cache_salt":"tenant-7"`))
	salted := s.batch()
	if !reflect.DeepEqual(salted.event(0)["extra_keys"], []any{[]any{"tenant-7"}, nil}) || salted.event(0)["block_hashes"].([]any)[0] == hashes[0] {
		t.Errorf("the salted batch is %+v", salted)
	}
	complete(t, w, strings.Replace(idsBody(100, 33, `,"cache_salt":"x"`), "sim-model", "lora", 1))
	adapted := s.batch()
	if e := adapted.event(0); e["lora_name"] != "lora" || e["lora_id"] != uint64(1) || !reflect.DeepEqual(e["extra_keys"], []any{[]any{"lora", "x"}, []any{"lora"}}) {
		t.Errorf("the adapter's batch is %+v", e)
	}
	// The cache is full: 5 + 2 + 2 of 10 blocks. What is used longest goes, tail first.
	complete(t, w, idsBody(500, 65, ""))
	full := s.batch()
	if full.kinds() != "BlockRemoved 1, BlockRemoved 1, BlockRemoved 1, BlockStored 4" {
		t.Fatalf("the batch is %s", full.kinds())
	}
	for i, want := range []any{b.event(0)["block_hashes"].([]any)[0], hashes[3], hashes[2]} {
		if got := full.event(i)["block_hashes"].([]any)[0]; got != want {
			t.Errorf("removal %d is of %v, want %v", i, got, want)
		}
	}
	// That the cache was emptied is told with the next step.
	if r := post(testContext(t), client(t), w.URL()+"/reset_prefix_cache", ""); r.status != 200 {
		t.Fatal(r)
	}
	complete(t, w, idsBody(100, 5, ""))
	if b := s.batch(); b.kinds() != "AllBlocksCleared 0" || b.seq != full.seq+1 {
		t.Errorf("after the reset came %+v", b)
	}
	complete(t, w, idsBody(100, 70, ""))
	if b := s.batch(); !reflect.DeepEqual(b.event(0)["block_hashes"], any(hashes)) {
		t.Errorf("the same tokens have the hashes %v, had %v", b.event(0)["block_hashes"], hashes)
	}
	// Restarted, it begins again, with the same hashes.
	if err := w.Restart(); err != nil {
		t.Fatal(err)
	}
	s = subscribe(t, w, 0, "")
	complete(t, w, idsBody(100, 70, ""))
	if b := s.batch(); b.seq != 0 || !reflect.DeepEqual(b.event(0)["block_hashes"], any(hashes)) {
		t.Errorf("after the restart came %+v", b)
	}
}

// Output is told block by block while it is produced, with the session of a header.
func TestEventsOfOutput(t *testing.T) {
	w := eventFleet(t, WorkerOptions{})
	s := subscribe(t, w, 0, "")
	req, _ := http.NewRequest(http.MethodPost, w.URL()+chatPath, strings.NewReader(`{"messages":[{"role":"user","content":"hi"}],"max_tokens":100}`))
	req.Header.Set("X-Session-ID", "tag-1")
	req.Header.Set("Content-Type", "application/json")
	r := send(client(t), req)
	answer := content(t, r.body)
	b := s.batch()
	if b.kinds() != "BlockStored 1" || b.event(0)["session_id"] != "tag-1" {
		t.Errorf("the batch is %+v", b)
	}
	var text []byte
	for _, id := range b.event(0)["token_ids"].([]any) {
		text = appendPiece(text, int64(id.(uint64)))
	}
	parent := b.event(0)["block_hashes"].([]any)[0]
	for len(text) < len("user\nhi\nassistant\n")+len(answer)-16*bytesPerToken {
		b = s.batch()
		if b.kinds() != "BlockStored 1" || b.event(0)["parent_block_hash"] != parent {
			t.Fatalf("the batch is %+v", b)
		}
		parent = b.event(0)["block_hashes"].([]any)[0]
		for _, id := range b.event(0)["token_ids"].([]any) {
			text = appendPiece(text, int64(id.(uint64)))
		}
	}
	if whole := "user\nhi\nassistant\n" + answer; !strings.HasPrefix(whole, string(text)) {
		t.Errorf("the events tell %q, the conversation is %q", text, whole)
	}
}

// SGLang: arrays, an event for each page, hashes by SHA-256 that are signed.
func TestEventsOfSGLang(t *testing.T) {
	w := eventFleet(t, WorkerOptions{Backend: SGLang, PageSize: 4, CacheBlocks: 3})
	s := subscribe(t, w, 0, "")
	if r := post(testContext(t), client(t), w.URL()+"/generate", `{"input_ids":[1,2,3,4,5,6,7,8,9],"sampling_params":{"max_new_tokens":1}}`); r.status != 200 {
		t.Fatal(r)
	}
	var want []any
	var before []byte
	var parent any
	for page := range 2 {
		d := append([]byte(nil), before...)
		var ids []any
		for id := uint32(4*page + 1); id < uint32(4*page+5); id++ {
			d = binary.LittleEndian.AppendUint32(d, id)
			ids = append(ids, uint64(id))
		}
		sum := sha256.Sum256(d)
		before = sum[:]
		h := any(int64(binary.BigEndian.Uint64(sum[:])))
		if h.(int64) >= 0 {
			h = uint64(h.(int64))
		}
		want = append(want, []any{"BlockStored", []any{h}, parent, ids, uint64(4), nil, "GPU"})
		parent = h
	}
	if b := s.batch(); b.seq != 0 || !reflect.DeepEqual(b.events, want) || b.rank != uint64(0) {
		t.Errorf("the batch is %+v, want %+v", b, want)
	}
	if r := post(testContext(t), client(t), w.URL()+"/flush_cache", ""); r.status != 200 {
		t.Fatal(r)
	}
	if r := post(testContext(t), client(t), w.URL()+"/generate", `{"input_ids":[1,2,3,4,5],"sampling_params":{"max_new_tokens":1}}`); r.status != 200 {
		t.Fatal(r)
	}
	if b := s.batch(); !reflect.DeepEqual(b.events, append([]any{[]any{"AllBlocksCleared"}}, want[:1]...)) {
		t.Errorf("after the flush came %+v", b)
	}
}

// Each form must have its own shape.
func TestEventForms(t *testing.T) {
	x := []kvEvent{
		{kind: blockRemoved, hashes: []uint64{1 << 63, 7}},
		{kind: blockStored, hashes: []uint64{1 << 63, 7}, ids: []uint32{1, 2, 3, 4}, size: 2, scope: &cacheScope{adapter: "l", adapterID: 2, salt: "s", session: "t"}},
		{kind: allBlocksCleared},
	}
	big, seven := uint64(1)<<63, uint64(7)
	ids := []any{uint64(1), uint64(2), uint64(3), uint64(4)}
	keys := []any{[]any{"l", "s"}, []any{"l"}}
	for form, want := range map[EventForm][]any{
		EventArray: {
			[]any{"BlockRemoved", []any{big, seven}, "GPU", uint64(0)},
			[]any{"BlockStored", []any{big, seven}, nil, ids, uint64(2), uint64(2), "GPU", "l", keys, uint64(0), "full_attention"},
			[]any{"AllBlocksCleared"},
		},
		EventShort: {
			[]any{"BlockRemoved", []any{big, seven}, "GPU"},
			[]any{"BlockStored", []any{big, seven}, nil, ids, uint64(2), uint64(2), "GPU"},
			[]any{"AllBlocksCleared"},
		},
		EventMap: {
			map[string]any{"type": "BlockRemoved", "block_hashes": []any{big, seven}, "medium": "GPU", "group_idx": uint64(0)},
			map[string]any{"type": "BlockStored", "block_hashes": []any{big, seven}, "parent_block_hash": nil, "token_ids": ids, "block_size": uint64(2), "lora_id": uint64(2),
				"medium": "GPU", "lora_name": "l", "extra_keys": keys, "group_idx": uint64(0), "kv_cache_spec_kind": "full_attention", "session_id": "t"},
			map[string]any{"type": "AllBlocksCleared"},
		},
		EventSGLang: {
			[]any{"BlockRemoved", []any{int64(math.MinInt64)}, "GPU"},
			[]any{"BlockRemoved", []any{seven}, "GPU"},
			[]any{"BlockStored", []any{int64(math.MinInt64)}, nil, ids[:2], uint64(2), uint64(2), "GPU"},
			[]any{"BlockStored", []any{seven}, int64(math.MinInt64), ids[2:], uint64(2), uint64(2), "GPU"},
			[]any{"AllBlocksCleared"},
		},
		EventSGLangMap: {
			map[string]any{"type": "BlockRemoved", "block_hashes": []any{int64(math.MinInt64)}, "medium": "GPU"},
			map[string]any{"type": "BlockRemoved", "block_hashes": []any{seven}, "medium": "GPU"},
			map[string]any{"type": "BlockStored", "block_hashes": []any{int64(math.MinInt64)}, "parent_block_hash": nil, "token_ids": ids[:2], "block_size": uint64(2),
				"lora_id": uint64(2), "medium": "GPU", "cache_salt": "s", "session_id": "t"},
			map[string]any{"type": "BlockStored", "block_hashes": []any{seven}, "parent_block_hash": int64(math.MinInt64), "token_ids": ids[2:], "block_size": uint64(2),
				"lora_id": uint64(2), "medium": "GPU", "cache_salt": "s", "session_id": "t"},
			map[string]any{"type": "AllBlocksCleared"},
		},
	} {
		got := unpacked(t, encoder{form: form}.batch(nil, 1.5, x, 3))
		if !reflect.DeepEqual(got, []any{1.5, want, uint64(3)}) {
			t.Errorf("%s: %v\nwant %v", form, got, want)
		}
	}
	hashes := unpacked(t, encoder{form: EventMap, bytes: true}.hashes(nil, []uint64{5})).([]any)
	if h, ok := hashes[0].([]byte); !ok || len(h) != 32 || h[31] != 5 {
		t.Errorf("a hash of bytes is %v", hashes)
	}
}

// What was missed must be repeated on request, in the form of the engine's version.
func TestReplay(t *testing.T) {
	end := strings.Repeat("\xff", 8)
	for form, topic := range map[EventForm]bool{EventMap: true, EventArray: false} {
		w := eventFleet(t, WorkerOptions{KVEvents: &KVEvents{Topic: "kv", Form: form, Buffer: 3}})
		s := subscribe(t, w, 0, "")
		var sent [][]byte
		for i := range 5 {
			complete(t, w, idsBody(100*i, 20, ""))
			sent = append(sent, s.frames()[2])
		}
		d := connect(t, w.KVReplayEndpoint(0), "DEALER")
		reply := func() (seq string, payload []byte) {
			f := d.frames()
			if len(f) != map[bool]int{true: 4, false: 3}[topic] || len(f[0]) != 0 {
				t.Fatalf("%s: a reply of %d frames", form, len(f))
			}
			if topic && string(f[1]) != map[bool]string{true: "kv"}[string(f[2]) != end] {
				t.Errorf("%s: a reply of topic %q", form, f[1])
			}
			return string(f[len(f)-2]), f[len(f)-1]
		}
		for _, tc := range []struct {
			start []byte
			from  uint64 // of the batches that come
		}{
			{make([]byte, 8), 2}, // those before are not kept any more
			{binary.BigEndian.AppendUint64(nil, 4), 4},
			{binary.BigEndian.AppendUint64(nil, 99), 5},
			{[]byte{0, 0, 3}, 3},
		} {
			d.send([]byte("not a request"))
			d.send(nil, tc.start)
			for seq := tc.from; seq < 5; seq++ {
				got, payload := reply()
				if binary.BigEndian.Uint64([]byte(got)) != seq || !slices.Equal(payload, sent[seq]) {
					t.Errorf("%s: replay from %x: %x %x", form, tc.start, got, payload)
				}
			}
			if got, payload := reply(); got != end || len(payload) > 0 {
				t.Errorf("%s: replay from %x ends with %x %x", form, tc.start, got, payload)
			}
		}
	}
}

// Engines tell where their events are, each in its own way.
func TestEventSources(t *testing.T) {
	get := func(w *Worker, path string) (v map[string]any) {
		req, _ := http.NewRequest(http.MethodGet, w.URL()+path, nil)
		if r := send(client(t), req); r.status != 200 || json.Unmarshal([]byte(r.body), &v) != nil {
			t.Fatalf("%s: %+v", path, r)
		}
		return v
	}
	port := func(endpoint string) float64 {
		var n float64
		_, _ = fmt.Sscanf(endpoint[strings.LastIndexByte(endpoint, ':')+1:], "%g", &n)
		return n
	}
	w := eventFleet(t, WorkerOptions{DPSize: 3, KVEvents: &KVEvents{Topic: "t"}})
	v := get(w, "/kv_event_sources")
	for rank := range 3 {
		e, _ := v[fmt.Sprint(rank)].(map[string]any)
		endpoint := strings.Replace(w.KVEndpoint(rank), "127.0.0.1", "*", 1)
		if e["endpoint"] != endpoint || e["replay_endpoint"] != strings.Replace(w.KVReplayEndpoint(rank), "127.0.0.1", "*", 1) || e["topic"] != "t" || e["publisher"] != "zmq" {
			t.Errorf("rank %d is said to be at %v, is at %s", rank, e, endpoint)
		}
		if got := port(w.KVEndpoint(rank)); got != port(w.KVEndpoint(0))+float64(rank) {
			t.Errorf("rank %d is at port %v, rank 0 at %v", rank, got, port(w.KVEndpoint(0)))
		}
		s := subscribe(t, w, rank, "t")
		req, _ := http.NewRequest(http.MethodPost, w.URL()+"/v1/completions", strings.NewReader(idsBody(1, 17, "")))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Data-Parallel-Rank", fmt.Sprint(rank))
		if r := send(client(t), req); r.status != 200 {
			t.Fatal(r)
		}
		if b := s.batch(); b.rank != uint64(rank) || b.seq != 0 {
			t.Errorf("rank %d told %+v", rank, b)
		}
	}
	// A server that has a part of a model's ranks numbers them among all.
	part := eventFleet(t, WorkerOptions{DPSize: 2, FirstRank: 4})
	second := subscribe(t, part, 1, "")
	if e, _ := get(part, "/kv_event_sources")["5"].(map[string]any); e["endpoint"] != strings.Replace(part.KVEndpoint(1), "127.0.0.1", "*", 1) {
		t.Errorf("rank 5 is said to be at %v", e)
	}
	req, _ := http.NewRequest(http.MethodPost, part.URL()+"/v1/completions", strings.NewReader(idsBody(1, 17, "")))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Data-Parallel-Rank", "1")
	if r := send(client(t), req); r.status != 200 {
		t.Fatal(r)
	}
	if b := second.batch(); b.rank != uint64(5) {
		t.Errorf("rank 5 told %+v", b)
	}

	off := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: VLLM}}).Regular(0)
	if v := get(off, "/kv_event_sources"); len(v) != 0 || off.KVEndpoint(0) != "" {
		t.Errorf("without events the sources are %v", v)
	}

	s := eventFleet(t, WorkerOptions{Backend: SGLang, PageSize: 64, DPSize: 2, KVEvents: &KVEvents{ReplayPort: -1}})
	e, _ := get(s, "/server_info")["kv_events"].(map[string]any)
	if e["endpoint_port_base"] != port(s.KVEndpoint(0)) || e["block_size"] != 64.0 || e["dp_size"] != 2.0 || e["publisher"] != "zmq" || port(s.KVEndpoint(1)) != port(s.KVEndpoint(0))+1 {
		t.Errorf("SGLang tells of %v", e)
	}
	if s.KVReplayEndpoint(0) != "" {
		t.Error("what repeats nothing has an endpoint for it")
	}
}

// Ports that are given must be those of all ranks of all workers in a row.
func TestEventPorts(t *testing.T) {
	base := freeRow("127.0.0.1", 8)
	f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{Backend: VLLM, DPSize: 2, KVEvents: &KVEvents{Port: base, ReplayPort: base + 4}}})
	for i, w := range []*Worker{f.Prefill(0), f.Decode(0)} {
		for rank := range 2 {
			if got, want := w.KVEndpoint(rank), fmt.Sprintf("tcp://127.0.0.1:%d", base+2*i+rank); got != want {
				t.Errorf("rank %d of %s is at %s, want %s", rank, w.ID(), got, want)
			}
			if got, want := w.KVReplayEndpoint(rank), fmt.Sprintf("tcp://127.0.0.1:%d", base+4+2*i+rank); got != want {
				t.Errorf("rank %d of %s repeats at %s, want %s", rank, w.ID(), got, want)
			}
		}
	}
}
