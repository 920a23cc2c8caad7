package vllmgrpc

import (
	"io"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/engine"
	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
	"github.com/sluice-router/sluice/internal/upstream"
)

// script is a source of messages that are there already.
type script struct {
	list   [][]byte
	end    error
	o      *one
	closed bool
}

func (s *script) next() (*one, []byte, error) {
	if s.closed || len(s.list) == 0 {
		return s.o, nil, s.end
	}
	m := s.list[0]
	s.list = s.list[1:]
	return s.o, m, nil
}
func (s *script) ready() int { return len(s.list) % 3 } // now some, now none
func (s *script) wait()      {}
func (s *script) close()     { s.closed = true }

// FuzzAnswer reads answers of engines that keep to no rules: each choice ends at most once, and
// the stream has an end only if all choices have one or an error was told.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3}, true, uint8(0))
	f.Add([]byte{0x12, 0x80, 0x91, 0x05}, true, uint8(1))
	f.Add([]byte{0xff, 0xc0, 0xd1}, false, uint8(2))
	ep, err := upstream.NewEndpoint(upstream.Config{URL: "http://127.0.0.1:1"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, steps []byte, stream bool, end uint8) {
		var list [][]byte
		for _, s := range steps {
			sample, n := uint32(s>>4&1), uint32(s&0xf)
			var m *vllmpb.GenerateResponse
			switch s >> 5 {
			case 0, 1, 2, 3:
				m = chunk(sample, n, n+12)
			case 4:
				m = complete(sample, "length", n)
			case 5:
				m = complete(sample, []string{"stop", "error", "abort", ""}[n%4])
			case 6:
				m = logprobChunk()
			default:
				list = append(list, steps) // nonsense
				continue
			}
			list = append(list, encoded(t, m))
		}
		ends := []error{io.EOF, &upstream.StatusError{Code: 13, Name: "INTERNAL"}, &upstream.Error{Op: upstream.OpBody, Kind: upstream.KindReset, Err: io.ErrUnexpectedEOF}}
		r := request(func(r *engine.Request) { r.Generate.Stream, r.Generate.Samples = stream, 2 })
		src := &script{list: list, end: ends[int(end)%len(ends)], o: &one{samples: 2, streamed: stream}}
		b := newBody(&call{ctx: t.Context(), to: ep, req: r}, src)
		got := readAnswer(upstream.NewResponse(200, nil, -1, b))
		b.Close()
		if !src.closed {
			t.Fatal("the calls were not ended")
		}
		for i, reason := range got.finish {
			if reason != "stop" && reason != "length" {
				t.Fatalf("choice %d ends with %q", i, reason)
			}
		}
		whole := len(got.finish) == 2 && got.err == nil
		if stream && (got.done > 1 || got.done == 1 && !whole && len(got.errors) != 1 || got.done == 1 && len(got.errors) == 1 && got.err != nil) {
			t.Fatalf("the stream ends as if it were whole: %+v", got)
		}
		if !stream && got.err == nil && !whole {
			t.Fatalf("the answer is not whole: %+v", got)
		}
		if strings.Contains(got.raw, "\uFFFD") {
			t.Fatalf("the answer has characters that are none: %s", got.raw)
		}
	})
}
