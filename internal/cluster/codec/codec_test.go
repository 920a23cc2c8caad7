package codec

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

// bodies are the kinds of items, each with the types of its body.
var bodies = map[cluster.ItemKind][]any{
	cluster.ItemArrive:      {cluster.Ask{}},
	cluster.ItemStep:        nil,
	cluster.ItemRefresh:     {cluster.HintsOf{}},
	cluster.ItemMove:        {[]cluster.RankAt(nil)},
	cluster.ItemMovedAlone:  nil,
	cluster.ItemReport:      {cluster.Report{}},
	cluster.ItemObserve:     {cluster.Observation{}},
	cluster.ItemConfigure:   {cluster.Configuration{}},
	cluster.ItemSharesTaken: nil,
	cluster.ItemQueued:      {cluster.Queued{}},
	cluster.ItemDecision:    {cluster.Grant{}, cluster.Refused{}},
	cluster.ItemRenew:       nil,
	cluster.ItemMoved:       nil,
	cluster.ItemRows:        {cluster.Rows{}},
	cluster.ItemShares:      {cluster.Shares{}},
	cluster.ItemHold:        {cluster.HoldOf{}},
	cluster.ItemHolds:       {cluster.Holds{}},
	cluster.ItemStatus:      {cluster.ClusterView{}},
	cluster.ItemDocuments:   {cluster.Documents{}},
}

// source gives what values are made of.
type source interface {
	number(bits int) uint64
	count(most int) int
	kind() cluster.ItemKind
}

// drawn are at random, ones all one and one of each.
type (
	drawn struct{ t *rapid.T }
	ones  struct{ of cluster.ItemKind }
)

func (d drawn) number(bits int) uint64 {
	return rapid.Uint64Max(math.MaxUint64>>(64-bits)).Draw(d.t, "number")
}
func (d drawn) count(most int) int { return rapid.IntRange(0, most).Draw(d.t, "count") }
func (d drawn) kind() cluster.ItemKind {
	return rapid.SampledFrom(kinds()).Draw(d.t, "kind")
}
func (ones) number(int) uint64        { return 1 }
func (ones) count(int) int            { return 1 }
func (o ones) kind() cluster.ItemKind { return o.of }

func kinds() (all []cluster.ItemKind) {
	for k := range 256 {
		if _, ok := bodies[cluster.ItemKind(k)]; ok {
			all = append(all, cluster.ItemKind(k))
		}
	}
	return all
}

// notSent are fields that are not sent, because others stand for them.
var notSent = map[string]bool{
	"Request.Deadline": true, "Request.Predicate": true, "Request.Origin": true, "Request.ClassDeadline": true, "Request.Exclude": true, "RequestHint.Holders": true, "RankSpec.Data": true, "RankSpec.Aside": true, "RankLimits.Share": true,
}

// fill sets every field of v.
func fill(s source, v reflect.Value, field string) {
	switch v.Interface().(type) {
	case admission.StepOp:
		v.SetString(string(ops[1+s.number(16)%uint64(len(ops)-1)]))
		return
	case admission.Settings:
		v.Field(0).FieldByName("QueueSize").SetInt(int64(s.number(20)))
		return
	case cluster.ClusterView:
		v.FieldByName("Keeper").SetString(fmt.Sprint("m", s.number(3)))
		return
	case cluster.ControlKind:
		v.SetUint(1 + s.number(8)%uint64(cluster.LastControl))
		return
	case cluster.Item:
		k := s.kind()
		for i := range v.NumField() {
			if n := v.Type().Field(i).Name; n != "Kind" && n != "Body" {
				fill(s, v.Field(i), n)
			}
		}
		v.FieldByName("Kind").SetUint(uint64(k))
		if of := bodies[k]; len(of) > 0 {
			b := reflect.New(reflect.TypeOf(of[s.number(1)%uint64(len(of))]))
			fill(s, b.Elem(), "")
			if b.Elem().Kind() == reflect.Slice {
				b = b.Elem()
				if b.Len() == 0 {
					return
				}
			}
			v.FieldByName("Body").Set(b)
		}
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(s.number(1) == 1)
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(int64(s.number(v.Type().Bits())))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(s.number(v.Type().Bits()))
	case reflect.Float64:
		v.SetFloat(float64(s.number(20)))
	case reflect.String:
		v.SetString(strings.Repeat("é", s.count(3)) + fmt.Sprint(s.number(4)))
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Name() + "." + v.Type().Field(i).Name; !notSent[name] {
				fill(s, v.Field(i), name)
			}
		}
	case reflect.Pointer:
		if s.count(1) == 1 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(s, v.Elem(), field)
		}
	case reflect.Slice:
		n := s.count(3)
		if n == 0 && field != "TargetSpec.Allowed" {
			return // an empty list is read as nil
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(s, v.Index(i), field)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(s, v.Index(i), field)
		}
	case reflect.Map:
		for range s.count(3) {
			if v.IsNil() {
				v.Set(reflect.MakeMap(v.Type()))
			}
			k, x := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(s, k, field)
			fill(s, x, field)
			v.SetMapIndex(k, x)
		}
	default:
		panic(fmt.Sprint("a field of a new kind: ", field, " ", v.Type()))
	}
}

func envelopeOf(s source) *cluster.Envelope {
	e := &cluster.Envelope{}
	fill(s, reflect.ValueOf(e).Elem(), "")
	e.Epoch.Number++
	return e
}

func differs(want, got *cluster.Envelope) string {
	got = new(*got)
	if len(got.Items) == 0 {
		got.Items = nil
	}
	return cmp.Diff(want, got, cmp.Transformer("normal", normal))
}

// normal is what is read of an Ask: without times that it does not have, and a time left
// of zero is a nanosecond.
func normal(a cluster.Ask) (n struct{ Ask askFields }) {
	n.Ask = askFields(a)
	for _, x := range []struct {
		has  bool
		left *time.Duration
	}{{a.HasDeadline, &n.Ask.Deadline}, {a.HasClassDeadline, &n.Ask.ClassDeadline}} {
		if !x.has {
			*x.left = 0
		} else if *x.left == 0 {
			*x.left = 1
		}
	}
	return n
}

type askFields cluster.Ask

// What is written is read, with every field of everything that is in it.
func TestWhatIsWrittenIsRead(t *testing.T) {
	for _, k := range kinds() {
		want := envelopeOf(ones{k})
		b, err := NewWriter().Append(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		var got cluster.Envelope
		if err := NewReader().Read(b, &got); err != nil {
			t.Fatal(err)
		}
		if d := differs(want, &got); d != "" {
			t.Errorf("items of kind %d: -written +read\n%s", k, d)
		}
	}
}

// What is sent to several peers is written for all of them at once, by goroutines of their
// own, so that writing changes nothing: the race detector looks at each field.
func TestWritingChangesNothing(t *testing.T) {
	for _, k := range kinds() {
		shared := envelopeOf(ones{k})
		var writing sync.WaitGroup
		for range 2 {
			writing.Go(func() {
				if _, err := NewWriter().Append(nil, shared); err != nil {
					t.Error(err)
				}
			})
		}
		writing.Wait()
	}
}

// A stream of envelopes of all kinds is read as it was written, whatever was before.
func TestAStreamIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, r := NewWriter(), NewReader()
		var got cluster.Envelope
		var b []byte
		for range rapid.IntRange(1, 4).Draw(t, "envelopes") {
			want := envelopeOf(drawn{t})
			var err error
			if b, err = w.Append(b[:0], want); err != nil {
				t.Fatal(err)
			}
			if err := r.Read(b, &got); err != nil {
				t.Fatal(err)
			}
			if d := differs(want, &got); d != "" {
				t.Fatalf("-written +read\n%s", d)
			}
		}
	})
}

// field writes one field in a message of its own.
func field(n protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), v)
}

func number(n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
}

// What a newer version sends is skipped where it may be, and refused by name where not.
func TestUnknownFields(t *testing.T) {
	join := slices.Concat[[]byte]
	for _, c := range []struct {
		name string
		b    []byte
		err  error
		says string
		want cluster.Envelope
	}{
		{name: "ignorable", b: join(number(3, 7), number(600, 1), field(700, []byte("x")), number(4, 8)), want: cluster.Envelope{Stamp: 7, Echo: 8}},
		{name: "in another order", b: join(number(4, 8), number(3, 7)), want: cluster.Envelope{Stamp: 7, Echo: 8}},
		{name: "critical", b: number(511, 1), err: ErrUnknown, says: "field 511 of *cluster.Envelope"},
		{name: "critical inside", b: field(5, number(200, 1)), err: ErrUnknown, says: "field 200 of *cluster.Epoch"},
		{name: "an ignorable item", b: join(field(11, join(number(1, 130), number(2, 99), number(300, 1))), field(11, join(number(1, uint64(cluster.ItemRenew)), number(5, 3)))),
			want: cluster.Envelope{Items: []cluster.Item{{Kind: cluster.ItemRenew, Number: 3}}}},
		{name: "a critical item", b: field(11, number(1, 100)), err: ErrUnknown, says: "an item of kind 100"},
		{name: "an ignorable control message", b: field(10, number(1, 200))},
		{name: "a critical control message", b: field(10, number(1, 90)), err: ErrUnknown, says: "a control message of kind 90"},
		{name: "an unknown step", b: field(11, join(number(1, uint64(cluster.ItemStep)), number(2, 50))), err: ErrUnknown, says: "step 50"},
		{name: "an item of no kind", b: field(11, nil), err: ErrMalformed},
		{name: "a length beyond the end", b: []byte{11<<3 | 2, 200, 1}, err: ErrMalformed},
		{name: "another type", b: number(11, 3), err: ErrMalformed, says: "field 11"},
		{name: "a number out of range", b: number(6, 1<<20), err: ErrMalformed, says: "out of range"},
		{name: "a target that was not told", b: field(11, join(number(1, uint64(cluster.ItemArrive)), field(14, field(1, number(1, 5))))), err: ErrMalformed, says: "target 5"},
		{name: "a size over the bound", b: make([]byte, MaxMessage+1), err: ErrTooLarge},
		{name: "much from little", b: bytes.Repeat(field(11, number(1, uint64(cluster.ItemRenew))), 1<<20), err: ErrTooLarge, says: "memory"},
	} {
		var got cluster.Envelope
		err := NewReader().Read(c.b, &got)
		if !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := differs(&c.want, &got); c.err == nil && d != "" {
			t.Errorf("%s: -want +got\n%s", c.name, d)
		}
	}
}

// A target is sent once; of more targets than there are numbers, each is told again when
// its number was given to another.
func TestTargetsAreSentOnce(t *testing.T) {
	w, r := NewWriter(), NewReader()
	size := func(pin string) int {
		ask := &cluster.Ask{}
		ask.Request.Target = admission.TargetSpec{Model: "m", Pins: [2]string{pin, ""}}
		b, err := w.Append(nil, &cluster.Envelope{Items: []cluster.Item{{Kind: cluster.ItemArrive, Body: ask}}})
		if err != nil {
			t.Fatal(err)
		}
		var got cluster.Envelope
		if err := r.Read(b, &got); err != nil {
			t.Fatal(err)
		}
		if p := got.Items[0].Body.(*cluster.Ask).Request.Target.Pins[0]; p != pin {
			t.Fatalf("%.20s in place of %.20s", p, pin)
		}
		return len(b)
	}
	pin := strings.Repeat("p", 100)
	if first, again := size(pin), size(pin); again > first-100 {
		t.Fatalf("%d bytes, and again %d", first, again)
	}
	for i := range 3 * maxTargets {
		size(fmt.Sprint(i))
	}
	if size(pin) < 100 {
		t.Fatal("it is known after so many others")
	}
	long := strings.Repeat("l", maxTargetSize+1)
	if first, again := size(long), size(long); min(first, again) < len(long) {
		t.Fatal("a long target has a number")
	}
	if len(w.c.out.numbers) > maxTargets || len(r.c.in.targets) > maxTargets {
		t.Fatalf("%d and %d targets are kept", len(w.c.out.numbers), len(r.c.in.targets))
	}
}

// Whatever comes, reading it neither fails otherwise than it says, nor takes more memory
// than the bound; and what was read can be written.
func FuzzRead(f *testing.F) {
	for _, k := range kinds() {
		b, err := NewWriter().Append(nil, envelopeOf(ones{k}))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e cluster.Envelope
		err := NewReader().Read(b, &e)
		switch {
		case err == nil:
			if _, err := NewWriter().Append(nil, &e); err != nil {
				t.Fatalf("it cannot be written: %v", err)
			}
		case !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnknown) && !errors.Is(err, ErrTooLarge):
			t.Fatalf("an error of no kind: %v", err)
		}
	})
}
