package vllmgrpc

import (
	"io"
	"testing"

	"github.com/sluice-router/sluice/internal/upstream"
)

// BenchmarkBody is one streamed answer of 1,000 tokens, of which each comes alone.
func BenchmarkBody(b *testing.B) {
	ep, err := upstream.NewEndpoint(upstream.Config{URL: "http://127.0.0.1:1"})
	if err != nil {
		b.Fatal(err)
	}
	const n = 1000
	list := make([][]byte, 0, n+1)
	for i := range uint32(n) {
		list = append(list, encoded(b, chunk(0, i%26)))
	}
	list = append(list, encoded(b, complete(0, "length", 0)))
	r := request(streamed)
	r.Generate.Sampling.MaxTokens = n
	b.ReportAllocs()
	for b.Loop() {
		src := &oneByOne{script{list: list, end: io.EOF, o: &one{samples: 1, streamed: true}}}
		body := newBody(&call{ctx: b.Context(), to: ep, req: r}, src)
		pieces := 0
		for {
			if _, err := body.Next(); err != nil {
				break
			}
			pieces++
		}
		if pieces < n {
			b.Fatalf("%d pieces", pieces)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/token")
}

// oneByOne is a script of which nothing is there before it is waited for.
type oneByOne struct{ script }

func (*oneByOne) ready() int { return 0 }
