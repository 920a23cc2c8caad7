package server

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
)

// With --http-stack net clients are served as with the own stack, where that shows
// outside. All tests of the package do so with SLUICE_TEST_HTTP_STACK=net; these always.
func TestWithTheNetHTTPStack(t *testing.T) {
	before := testStack
	testStack = config.HTTPStackNet
	defer func() { testStack = before }()
	for name, test := range map[string]func(*testing.T){
		"a client leaves":           TestClientDisconnectIsNoticed,
		"pipelined requests":        TestPipelinedRequestsBehindALongOneAreServed,
		"much behind a request":     TestManyPipelinedBytesAreServed,
		"a client reads nothing":    TestClientThatReadsNothingIsDropped,
		"idle and slow":             TestIdleConnectionAndSlowHeadAreClosed,
		"TLS":                       TestTLSToThePlainPort,
		"few files":                 TestRequestsAreRefusedNearTheFileLimit,
		"broken stream":             TestBrokenStreamEndsWithoutStrayBytes,
		"panic":                     TestPanicIsA500AndALogLine,
		"no request":                TestMalformedRequestsAreLogged,
		"large bodies":              TestTooLargeIsReadByAClientThatSendsAllFirst,
		"answer before the body":    TestTooLargeIsAnsweredBeforeTheBodyIsSent,
		"expect":                    TestExpect100Continue,
		"slow body":                 TestSlowBodyIsEnded,
		"long request":              TestLongRequestOutlivesTheBodyDeadline,
		"body cut off":              TestBodyThatIsCutOffReachesNobody,
		"kept after a refusal":      TestConnectionIsKeptAfterASmallRefusal,
		"drain":                     TestStreamsFinishDuringTheDrain,
		"drain timeout":             TestDrainTimeoutEndsRequestsWithAnError,
		"idle connections give way": TestIdleClientConnectionsAreEvicted,
		"half a body gives way":     TestPartialBodyIsRefusedWhenItsConnectionIsEvicted,
		"engines' idle connections": TestIdleEngineConnectionsAreClosedFirst,
		"long heads":                TestLongHeadsAreCounted,
		"leaving on all routes":     TestClientDisconnectsOnEveryStreamingRoute,
		"answers pass as they are":  TestAnswersPassAsTheyAre,
		"no such method":            TestOtherMethodsAreNotAllowed,
		"refused bodies":            TestRefusedBodiesDoNotBreakConnections,
	} {
		t.Run(name, test)
	}
}

// A body that nobody reads is thrown away before the next request, however it is
// framed and whenever it comes, and no part of it is taken for a request.
func TestRefusedBodiesDoNotBreakConnections(t *testing.T) {
	r := start(t, nil)
	c := r.dial()
	for range 3 {
		c.post("/nowhere", 500, "{")
		if a := c.read(); a.status != 404 {
			t.Fatalf("status %d", a.status)
		}
		c.send(strings.Repeat("x", 499)) // late: the answer is out
		c.send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
		if a := c.read(); a.status != 200 {
			t.Fatalf("status %d", a.status)
		}
	}
	if log := r.log.String(); strings.Contains(log, "panic ") {
		t.Error("the log speaks of a panic")
	}
}

// With both a Content-Length and a Transfer-Encoding, nothing behind the request is
// served: who goes by the other one sees another end of it.
func TestNothingIsServedBehindAnAmbiguousEnd(t *testing.T) {
	for _, stack := range []string{config.HTTPStackOwn, config.HTTPStackNet} {
		t.Run(stack, func(t *testing.T) {
			r := start(t, func(s *setup) { s.cfg.Server.HTTPStack = stack })
			c := r.dial()
			c.send("POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
			b, _ := io.ReadAll(c.r)
			if n := strings.Count(string(b), "HTTP/1.1 "); n != 1 {
				t.Errorf("%d answers: %q", n, b)
			}
		})
	}
}

// What is no request is answered in the form of the API by both stacks.
func TestMalformedRequestsOnBothStacks(t *testing.T) {
	for _, stack := range []string{config.HTTPStackOwn, config.HTTPStackNet} {
		r := start(t, func(s *setup) {
			s.cfg.Server.HTTPStack = stack
			s.cfg.Timeouts.ClientHeader = 200 * time.Millisecond
		})
		for text, want := range map[string]struct {
			status int
			code   string
		}{
			"hello\r\n\r\n":                                                                       {400, "malformed_request"},
			"GET / HTTP/1.1\r\n\r\n":                                                              {400, "malformed_request"},
			"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n":                                        {400, "malformed_request"},
			"GET /#a HTTP/1.1\r\nHost: a\r\n\r\n":                                                 {400, "malformed_request"},
			"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n":                                             {400, "malformed_request"},
			"GET / HTTP/2.0\r\nHost: a\r\n\r\n":                                                   {505, "unsupported_http_version"},
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                                                    {505, "unsupported_http_version"},
			"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n":                       {501, "unsupported_transfer_coding"},
			"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: more\r\n\r\n":             {417, "expectation_failed"},
			"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", maxHeaderBytes) + "\r\n\r\n": {431, "request_head_too_large"},
			"GET / HTTP/1.1\r\nHos":                                                               {408, "request_timeout"},
		} {
			c := r.dial()
			c.send(text)
			a := c.read()
			if a.status != want.status || a.header.Get("X-Smg-Error-Code") != want.code || a.header.Get("Connection") != "close" {
				t.Errorf("%s: %.40q: status %d, %v: %s", stack, text, a.status, a.header, a.body)
				continue
			}
			a.refused(t, want.status, want.code)
			r.line(a.header.Get("X-Request-Id"))
		}
	}
}

// A body that does not come on after its early answer ends the connection, in good
// order.
func TestRefusedBodyThatStopsEndsItsConnection(t *testing.T) {
	for _, stack := range []string{config.HTTPStackOwn, config.HTTPStackNet} {
		t.Run(stack, func(t *testing.T) {
			r := start(t, func(s *setup) { s.cfg.Server.HTTPStack = stack })
			c := r.dial()
			c.post("/nowhere", 500, "{")
			if a := c.read(); a.status != 404 {
				t.Fatalf("status %d", a.status)
			}
			_ = c.CloseWrite()
			c.ended()
			if stack == config.HTTPStackOwn {
				return // the same, after a longer time
			}
			c = r.dial()
			c.post("/livez", 500, "{")
			if a := c.read(); a.status != 405 {
				t.Fatalf("status %d", a.status)
			}
			c.ended()
			if log := r.log.String(); strings.Contains(log, "panic ") {
				t.Error("the log speaks of a panic")
			}
		})
	}
}
