//go:build unix

package upstream

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// cannedServer answers every request with the same bytes and does next to nothing
// else, so that what is measured is the client.
func cannedServer(b testing.TB, answer string) string {
	canned := []byte(answer)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				for {
					n := 0
					for {
						line, err := br.ReadSlice('\n')
						if err != nil {
							return
						}
						if len(line) == 2 {
							break
						}
						if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
							n = 0
							for _, d := range bytes.TrimSpace(v) {
								n = n*10 + int(d-'0')
							}
						}
					}
					if _, err := br.Discard(n); err != nil {
						return
					}
					if _, err := c.Write(canned); err != nil {
						return
					}
				}
			}()
		}
	}()
	return "http://" + ln.Addr().String()
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkLeg is one request with its answer, the server's part in the CPU time
// included and the same for both clients.
func BenchmarkLeg(b *testing.B) {
	events := ""
	for range 16 {
		events += "3e\r\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"}}]}\n\n\r\n"
	}
	const reply = `{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":"hello"}}]}`
	for _, shape := range []struct {
		name, answer string
		body         int
	}{
		{"plain", fmt.Sprintf("HTTP/1.1 200 OK\r\ndate: Sat, 01 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%s", len(reply), reply), 400},
		{"stream16", "HTTP/1.1 200 OK\r\ndate: Sat, 01 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n" + events + "0\r\n\r\n", 400},
		{"plain1MB", fmt.Sprintf("HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s", len(reply), reply), 1 << 20},
	} {
		for _, client := range []string{"own", "nethttp"} {
			b.Run(shape.name+"/"+client, func(b *testing.B) {
				e := endpoint(b, Config{NetHTTP: client == "nethttp"}, cannedServer(b, shape.answer))
				payload := make([]byte, shape.body)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				b.ReportAllocs()
				start := cpu()
				for b.Loop() {
					req := Request{
						Method: "POST", Path: "/v1/chat/completions",
						Header: Header{{"Content-Type", "application/json"}, {"X-Request-Id", "0123456789abcdef"}, {"Accept", "*/*"}},
						Body:   [][]byte{payload[:10], payload[10:100], payload[100:]},
						Limits: Limits{Header: time.Minute, StreamIdle: time.Minute},
					}
					resp, err := e.Do(ctx, &req)
					if err != nil {
						b.Fatal(err)
					}
					for {
						if _, err := resp.Body.Next(); err != nil {
							if err != io.EOF {
								b.Fatal(err)
							}
							break
						}
					}
				}
				b.ReportMetric(float64((cpu()-start).Microseconds())/float64(b.N), "cpu-µs/op")
				b.StopTimer()
				e.Close()
			})
		}
	}
	// The client as most programs use it, without this package's wrapping.
	b.Run("plain/bare-nethttp", func(b *testing.B) {
		url := cannedServer(b, fmt.Sprintf("HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s", len(reply), reply))
		c := &http.Client{Transport: &http.Transport{DisableCompression: true}}
		defer c.CloseIdleConnections()
		b.ReportAllocs()
		start := cpu()
		for b.Loop() {
			resp, err := c.Post(url, "application/json", http.NoBody)
			if err != nil {
				b.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		b.ReportMetric(float64((cpu()-start).Microseconds())/float64(b.N), "cpu-µs/op")
	})
}
