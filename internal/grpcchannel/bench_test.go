package grpcchannel

import (
	"context"
	"io"
	"testing"

	"google.golang.org/grpc"

	"github.com/sluice-router/sluice/internal/upstream"
)

// BenchmarkStream is the cost of one message of a stream, the engine's included.
func BenchmarkStream(b *testing.B) {
	n := 0
	l := startEngine(b, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		for range n {
			if err := s.SendMsg(in); err != nil {
				return err
			}
		}
		return nil
	})
	c := channelTo(b, l.addr)
	n = b.N
	b.ReportAllocs()
	s, err := c.Stream(context.Background(), method, make([]byte, 24), upstream.CallOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for {
		if _, err := s.Next(); err == io.EOF {
			return
		} else if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkInvoke is the cost of a call, the engine's included.
func BenchmarkInvoke(b *testing.B) {
	c := channelTo(b, startEngine(b, "127.0.0.1:0", echo).addr)
	msg := make([]byte, 24)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Invoke(context.Background(), method, msg, upstream.CallOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
