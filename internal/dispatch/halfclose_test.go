package dispatch

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// A client that closes its side has left, as far as anyone can tell. If it still
// reads, it must not find an empty answer of status 200.
func TestHalfClosedClientGetsNoEmptyAnswer(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, extra string) {
		r := newRig(t, pd(rigOptions{breaker: firstFault, sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: forever}}}}))
		conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		body := chatBody(extra)
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		r.working(r.sim.Prefill(0), 1)
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(conn)
		if bytes.Contains(got, []byte(" 200 ")) {
			t.Errorf("it was answered %q", got)
		}
		r.settled()
		if rec := r.waitRecord(0); rec.Status != StatusClientGone || rec.Reason != reasonClientGone {
			t.Errorf("recorded %+v", rec)
		}
		r.charged()
	})
}
