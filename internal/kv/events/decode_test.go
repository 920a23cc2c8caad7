package events

import (
	"encoding/hex"
	"math"
	"strings"
	"testing"
)

// seen is the payload of a batch that vLLM 0.32 sent: 3 blocks of 32 tokens, the ids 20 to 115.
const seen = "93cb41dac3399bfc674d918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657393cf43e0369513f4d3dccfeaf46c" +
	"a0e213debfcf610900c2baa9d9bab1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc00601415161718191a1b1c1d1e1f2021" +
	"22232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d" +
	"5e5f606162636465666768696a6b6c6d6e6f70717273aa626c6f636b5f73697a6520a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f" +
	"6e616d65c0aa65787472615f6b65797393c0c0c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f61747465" +
	"6e74696f6e00"

func seenPayload() []byte {
	b, err := hex.DecodeString(seen)
	if err != nil {
		panic(err)
	}
	return b
}

func TestABatchOfARealEngineIsRead(t *testing.T) {
	d := newDecoder()
	var r recorder
	got := d.decode(seenPayload(), 0, &r)
	if got.events != 1 || got.bad+got.skipped != 0 || got.broken || got.foreign || math.Abs(got.time-1795.9e6) > 1e6 {
		t.Fatalf("%+v", got)
	}
	want := "stored [4890969209237197788 16930276337436057279 6992120732824754618] of 32: [20 21 22"
	if s := r.take(); !strings.HasPrefix(s, want) || !strings.HasSuffix(s, "114 115] kind=full_attention") {
		t.Fatal(s)
	}
}

// A story is a list of events and what is told of them.
func TestEventsOfAllForms(t *testing.T) {
	long := strings.Repeat("x", maxName+1)
	for _, c := range []struct {
		name         string
		events       list
		want         string
		bad, skipped int
	}{
		{"SGLang: one event a page, signed hashes", list{
			list{"BlockStored", list{-5}, nil, ids(1, 2), 2, nil, "GPU"},
			list{"BlockStored", list{6}, -5, ids(3, 2), 2, nil, "GPU"},
			list{"BlockRemoved", list{6, -5}, "GPU"},
			list{"AllBlocksCleared"},
		}, "stored [18446744073709551611] of 2: [1 2]\nstored [6] after 18446744073709551611 of 2: [3 4]\n" +
			"removed [6 18446744073709551611]\ncleared", 0, 0},
		{"vLLM before maps, as short as it was at first", list{
			list{"BlockStored", list{uint64(1 << 63)}, nil, ids(1, 2), 2, nil},
			list{"BlockRemoved", list{uint64(1 << 63)}},
		}, "stored [9223372036854775808] of 2: [1 2]\nremoved [9223372036854775808]", 0, 0},
		{"vLLM before maps, as long as it became", list{
			list{"BlockStored", list{1, 2}, 7, ids(1, 4), 2, 3, "GPU", "tiger", list{list{"tiger", "salt"}, nil}, 1, "mamba", 128, "LOCAL", "later"},
			list{"BlockRemoved", list{1}, "CPU", 1},
		}, "stored [1 2] after 7 of 2: [1 2 3 4] adapter=tiger kind=mamba extra [[\"tiger\" \"salt\"] []] group 1\nremoved [1] in CPU group 1", 0, 0},
		{"maps, in any order, with members of the future", list{
			object{"future", object{"a", list{1, object{}}}, "token_ids", ids(1, 2), "block_hashes", list{9}, "block_size", 2, "lora_id", 4,
				"cache_salt", "tenant-7", "session_id", "tag-1", "type", "BlockStored", 17, 18},
			object{"block_hashes", list{9}, "medium", nil, "group_idx", nil, "type", "BlockRemoved"},
			object{"type", "AllBlocksCleared"},
			object{"type", "PublisherReset"},
		}, "stored [9] of 2: [1 2] adapter=#4 salt=tenant-7 session=tag-1\nremoved [9]\ncleared\ncleared", 0, 0},
		{"hashes as bytes and text, tokens as pairs", list{
			list{"BlockStored", list{append(make([]byte, 24), 0, 0, 0, 0, 0, 0, 1, 2), []byte{7}}, nil,
				list{list{1, 2}, list{2, 3}, list{3, 4}, list{4, 5}}, 2, nil, "GPU"},
			list{"BlockRemoved", list{uint64(258), "a"}, "GPU"},
		}, "stored [258 7] of 2: [1 2 3 4]\nremoved [258 12638187200555641996]", 0, 0},
		{"hashes alone, of another tier", list{
			object{"type", "BlockStored", "block_hashes", list{3}, "token_ids", list{}, "block_size", 0, "medium", "STORAGE"},
		}, "stored [3] in STORAGE", 0, 0},
		{"blocks that are elsewhere do not count", list{
			object{"type", "BlockStored", "block_hashes", list{3}, "token_ids", ids(1, 2), "block_size", 2, "locality", "REMOTE"},
			object{"type", "BlockRemoved", "block_hashes", list{3}, "locality", "REMOTE"},
		}, "", 0, 2},
		{"the last page is not full", list{
			list{"BlockStored", list{1, 2}, nil, ids(1, 3), 2, nil, "GPU"},
			list{"BlockStored", list{2}, 1, ids(3, 1), 2, nil, "GPU"},
		}, "stored [1] of 2: [1 2]", 0, 0},
		{"what else a block depends on: numbers and pairs as they are", list{
			list{"BlockStored", list{1}, nil, ids(1, 2), 2, nil, "GPU", nil, list{list{list{"image", 3}, 5}}},
		}, "stored [1] of 2: [1 2] extra [[\"\\xdc\\x00\\x02\\xda\\x00\\x05image\\x03\" \"\\x05\"]]", 0, 0},
		{"tokens that do not fit cost the tokens", list{
			list{"BlockStored", list{1}, nil, ids(1, 5), 2, nil, "GPU"},
			list{"BlockStored", list{2}, nil, ids(1, 2), 0, nil, "GPU"},
			list{"BlockStored", list{3}, nil, list{1, -1}, 2, nil, "GPU"},
			list{"BlockStored", list{4}, nil, list{1, uint64(1 << 32)}, 2, nil, "GPU"},
			list{"BlockStored", list{5}, nil, "text", 2, nil, "GPU"},
			list{"BlockStored", list{6}, nil, list{1, object{}}, 2, nil, "GPU"},
			list{"BlockStored", list{7}, nil, ids(1, 2), 2, nil, "GPU", long},
			list{"BlockStored", list{8}, nil, ids(1, 2), 2, nil, "GPU", nil, list{list{"a"}, nil}},
			list{"BlockStored", list{9}, nil, ids(1, 2), 2, nil, "GPU", nil, 5},
			list{"BlockStored", list{10}, nil, ids(1, 2), 2, nil, "GPU", nil, list{list{long}}},
			list{"BlockStored", list{11}, nil, ids(1, 2), maxBlockSize + 1, nil, "GPU"},
		}, "stored [1]\nstored [2]\nstored [3]\nstored [4]\nstored [5]\nstored [6]\nstored [7]\nstored [8]\nstored [9]\nstored [10]\nstored [11]", 11, 0},
		{"events that say nothing usable", list{
			list{}, object{}, 5, nil, "BlockStored",
			list{"BlockStored", 5, nil, ids(1, 2), 2},
			list{"BlockStored", list{1.5}, nil, ids(1, 2), 2},
			list{"BlockStored", list{1}, 1.5, ids(1, 2), 2},
			list{"BlockStored", list{1}, nil, ids(1, 2), 2, nil, 7},
			list{"BlockStored", list{1}, nil, ids(1, 2), 2, nil, "GPU", nil, nil, -1},
			list{"BlockStored", list{[]byte{}}, nil, ids(1, 2), 2},
			list{"BlockRemoved", nil},
			list{"BlockRemoved", list{1}, "GPU", maxGroup},
			removedEvent(5),
		}, "removed [5]", 13, 0},
		{"types of the future", list{
			list{"BlockMoved", list{1}}, object{"type", "BlockMoved"}, object{"kind", "x"}, list{7, 8}, removedEvent(5),
		}, "removed [5]", 0, 4},
		{"one hash that is none costs the removal of that one", list{
			list{"BlockRemoved", list{1, nil, 2, list{3}, 4}, "GPU"},
		}, "removed [1 2 4]", 1, 0},
		{"members twice: the last one counts", list{
			object{"type", "BlockStored", "block_hashes", list{1}, "block_hashes", list{2}, "token_ids", ids(1, 2), "token_ids", ids(3, 2), "block_size", 2},
		}, "stored [2] of 2: [3 4]", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDecoder()
			var r recorder
			got := d.decode(batchOf(append(c.events, removedEvent(99))...), AnyRank, &r)
			want := strings.TrimPrefix(c.want+"\nremoved [99]", "\n") // whatever there was, what follows counts
			if s := r.take(); s != want {
				t.Errorf("told:\n%s\nwant:\n%s", s, want)
			}
			if got.bad != c.bad || got.skipped != c.skipped || got.events != len(c.events)+1 || got.broken {
				t.Errorf("%+v, want bad %d, skipped %d", got, c.bad, c.skipped)
			}
		})
	}
}

func TestBatchesOfAllForms(t *testing.T) {
	ev := list{removedEvent(1)}
	for _, c := range []struct {
		name    string
		rank    int
		payload []byte
		want    batch
	}{
		{"with rank", 0, pack(list{1.5, ev, 0}), batch{time: 1.5, events: 1}},
		{"without rank", 0, pack(list{1.5, ev}), batch{time: 1.5, events: 1}},
		{"rank nil", 0, pack(list{1.5, ev, nil}), batch{time: 1.5, events: 1}},
		{"more than is known", 0, pack(list{1.5, ev, 0, "later", 5}), batch{time: 1.5, events: 1}},
		{"time a number", 0, pack(list{2, ev, 0}), batch{time: 2, events: 1}},
		{"time not a number", 0, pack(list{math.NaN(), ev, 0}), batch{events: 1}},
		{"time without end", 0, pack(list{math.Inf(1), ev, 0}), batch{events: 1}},
		{"time a list", 0, pack(list{list{1, list{2}}, ev, 0}), batch{events: 1}},
		{"time nil", 0, pack(list{nil, ev, 0}), batch{events: 1}},
		{"no events", 0, pack(list{1.5, list{}, 0}), batch{time: 1.5}},
		{"another rank", 1, pack(list{1.5, ev, 0}), batch{time: 1.5, foreign: true, events: 1, skipped: 1}},
		{"a negative rank", 0, pack(list{1.5, ev, -1}), batch{time: 1.5, foreign: true, events: 1, skipped: 1}},
		{"any rank", AnyRank, pack(list{1.5, ev, 7}), batch{time: 1.5, events: 1}},
		{"not a list", 0, pack(5), batch{broken: true}},
		{"too short", 0, pack(list{1.5}), batch{broken: true}},
		{"empty", 0, nil, batch{broken: true}},
		{"events not a list", 0, pack(list{1.5, 5, 0}), batch{time: 1.5, broken: true}},
		{"cut after the first event", 0, batchOf(removedEvent(1), removedEvent(2))[:45], batch{time: 1.5, broken: true, events: 1}},
		{"more events announced than bytes", 0, append(pack(list{1.5})[:3:3], 0xdd, 0xff, 0xff, 0xff, 0xff), batch{broken: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDecoder()
			var r recorder
			if got := d.decode(c.payload, c.rank, &r); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// Nested as deep as a message can be, at no cost of stack.
func TestDeepNestingIsSkipped(t *testing.T) {
	deep := append([]byte(strings.Repeat("\x91", 4<<20)), 0xc0)
	d := newDecoder()
	var r recorder
	got := d.decode(batchOf(object{"type", "BlockRemoved", "future", raw(deep), "block_hashes", list{1}}, raw(deep), removedEvent(2)), AnyRank, &r)
	if s := r.take(); s != "removed [1]\nremoved [2]" || got.skipped != 1 {
		t.Fatal(s, got)
	}
	if got := d.decode(pack(list{1.5, list{raw(deep[:1<<20])}}), AnyRank, &r); !got.broken {
		t.Fatal(got)
	}
}

func TestLimitsOfAnEvent(t *testing.T) {
	d := newDecoder()
	var r recorder
	many := make(list, maxTokens+1)
	for i := range many {
		many[i] = 1
	}
	tooMany := many[:maxHashes+1]
	got := d.decode(batchOf(
		list{"BlockStored", list{7}, nil, many, 2, nil, "GPU"},
		list{"BlockStored", tooMany, nil, list{}, 2, nil, "GPU"},
		list{"BlockRemoved", tooMany, "GPU"},
	), AnyRank, &r)
	if len(r.lines) != 2 || r.lines[0] != "stored [7]" || got.bad != 2 {
		t.Fatalf("%d lines, %+v", len(r.lines), got)
	}
	if cap(d.stored.Tokens) > keepTokens || cap(d.stored.Hashes) > keepHashes || cap(d.removed.Hashes) > keepHashes {
		t.Fatal("large buffers are kept")
	}
	for i := range 10 * maxInterned {
		d.intern(pack(i))
	}
	if len(d.names) > maxInterned {
		t.Fatal("strings are kept without a bound")
	}
}

func newDecoder() *decoder { return decoders.New().(*decoder) }

// quiet is a handler that does nothing.
type quiet struct{ n int }

func (q *quiet) stored(e *Stored)   { q.n += len(e.Hashes) }
func (q *quiet) removed(e *Removed) { q.n += len(e.Hashes) }
func (q *quiet) emptied()           {}

func TestDecodingAllocatesNothing(t *testing.T) {
	payload := pack(list{1.5, list{
		object{"type", "BlockStored", "block_hashes", list{uint64(1 << 63), 2}, "parent_block_hash", 4, "token_ids", ids(70_000, 64), "block_size", 32,
			"lora_id", 3, "medium", "GPU", "lora_name", "tiger", "extra_keys", list{list{"salt"}, nil}, "group_idx", 0, "kv_cache_spec_kind", "full_attention"},
		removedEvent(1, 2), storedEvent(1),
	}, 0})
	d := newDecoder()
	var q quiet
	d.decode(payload, 0, &q)
	if n := testing.AllocsPerRun(100, func() { d.decode(payload, 0, &q) }); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range []struct {
		name    string
		payload []byte
	}{
		{"3 blocks of 32", seenPayload()},
		{"64 removals", batchOf(func() (l list) {
			for i := range 64 {
				l = append(l, object{"type", "BlockRemoved", "block_hashes", list{uint64(i) << 50}, "medium", "GPU", "group_idx", 0})
			}
			return l
		}()...)},
	} {
		b.Run(c.name, func(b *testing.B) {
			d := newDecoder()
			var q quiet
			b.SetBytes(int64(len(c.payload)))
			b.ReportAllocs()
			for b.Loop() {
				d.decode(c.payload, 0, &q)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(seenPayload())
	f.Add(batchOf(storedEvent(1, 2), removedEvent(1), list{"AllBlocksCleared"}))
	f.Add(batchOf(object{"type", "BlockStored", "block_hashes", list{[]byte("digest-of-32")}, "extra_keys", list{list{"a", list{1}}}}))
	f.Add([]byte("\x93\xc0\xdd\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		d := newDecoder()
		check := func(h []uint64) {
			if len(h) == 0 || len(h) > len(payload) {
				t.Fatalf("%d hashes from %d bytes", len(h), len(payload))
			}
		}
		c := checker{func(e *Stored) {
			check(e.Hashes)
			if len(e.Tokens) > 0 && len(e.Tokens) != len(e.Hashes)*e.BlockSize || len(e.Extra) > 0 && len(e.Extra) != len(e.Hashes) ||
				len(e.Tokens) > len(payload) {
				t.Fatalf("does not fit together: %+v", e)
			}
		}, func(e *Removed) { check(e.Hashes) }}
		first := d.decode(payload, AnyRank, c)
		if again := d.decode(payload, AnyRank, c); again != first {
			t.Fatalf("%+v, then %+v", first, again)
		}
	})
}

type checker struct {
	onStored  func(*Stored)
	onRemoved func(*Removed)
}

func (c checker) stored(e *Stored)   { c.onStored(e) }
func (c checker) removed(e *Removed) { c.onRemoved(e) }
func (c checker) emptied()           {}
