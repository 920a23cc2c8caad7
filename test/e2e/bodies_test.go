package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// imageBody is a chat request of exactly n bytes with an image inside.
func imageBody(n int, extra string) string {
	head := `{"model":"sim-model","max_tokens":1,` + extra + `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`
	const tail = `"}}]}]}`
	return head + strings.Repeat("iVBOR+/=", n/8+1)[:n-len(head)-len(tail)] + tail
}

const echo = `"sim":"echo",`

// spliced are the fields by which a prefill and a decode worker meet.
var spliced = regexp.MustCompile(`,?"bootstrap_(host|port|room)":("[^"]*"|\d+|null)`)

// unsplice takes those fields out, and counts them.
func unsplice(body string) (rest string, n int) {
	from, to := strings.Index(body, `,"bootstrap_`), strings.LastIndex(body, `"bootstrap_`)
	if first := strings.Index(body, `"bootstrap_`); from < 0 || first < from {
		from = first
	}
	if from < 0 {
		return body, 0
	}
	to = min(to+100, len(body))
	n = len(spliced.FindAllString(body[from:to], -1))
	return body[:from] + spliced.ReplaceAllString(body[from:to], "") + body[to:], n
}

// What the client sent arrives byte for byte, however it is spelled and however
// big it is (llm-d/llm-d-router#2518: integers above 2^53 changed;
// sgl-project/sglang#9621: unknown fields dropped; sgl-project/sglang#6622:
// bodies of 10 MB refused).
func TestBodiesArriveUnchanged(t *testing.T) {
	t.Parallel()
	oddities := `{"model":"sim-model", "seed":9007199254740993,"sim":"echo", "big":9223372036854775807,"huge":1e400, "x":1.0,"y":-0,"z":0.10,"e":1E3,` +
		`"metadata":{"user_id":"12345678901234567890","n":12345678901234567890},"made_up":{"a":[{},[],{"b":null}]},"lone":"\ud800","utf":"\u00e9é",` +
		`"chat_template_kwargs":{"enable_thinking":false},"separate_reasoning":true, "` + "tab\\t" + `":"\/",` +
		`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"n":{"type":"integer","maximum":9223372036854775807}}}}}],` +
		"\n\t" + `"messages":[{"role":"user","content":"hi","odd":{"k":1.50}}]` + "\r\n}"
	bodies := map[string]string{"oddities": oddities, "1 MB": imageBody(1<<20, echo), "10 MB": imageBody(10<<20, echo)}

	t.Run("aggregated", func(t *testing.T) {
		t.Parallel()
		r := startRouter(t, startSim(t, "--prefill", "0", "--decode", "0", "--regular", "1"))
		for name, body := range bodies {
			a := send(probeClient, "POST", r.url()+"/v1/chat/completions", body).wait(t)
			if a.status != 200 || a.body != body {
				t.Errorf("%s: status %d, %d bytes of %d, equal %t: %s", name, a.status, len(a.body), len(body), a.body == body, clip(a.body))
			}
		}
	})
	t.Run("disaggregated", func(t *testing.T) {
		t.Parallel()
		r := startRouter(t, startSim(t))
		for name, body := range bodies {
			a := send(probeClient, "POST", r.url()+"/v1/chat/completions", body).wait(t)
			// The fields are added at one place; all else is in its place.
			rest, n := unsplice(a.body)
			if a.status != 200 || n != 3 || strings.Replace(rest, "{,", "{", 1) != body {
				t.Errorf("%s: status %d, %d fields added, %d bytes of %d: %s", name, a.status, n, len(rest), len(body), clip(a.body))
			}
		}
	})
}

// A body over the limit is refused with words that an ordinary client reads,
// though it first sends all it has; the limit is named, and the refusal is in
// the log and the metrics (finch-xu/cc-router#41: nobody could see why).
func TestBodyOverTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 2 << 20
	r := startRouter(t, startSim(t), "--max-payload-size", "2MiB")
	if a := send(probeClient, "POST", r.url()+"/v1/chat/completions", imageBody(limit, "")).wait(t); a.status != 200 {
		t.Errorf("at the limit: %s", a)
	}
	over := imageBody(limit+(8<<20), "")
	check := func(a *answer) {
		t.Helper()
		a.refused(t, 413, "request_too_large")
		if !strings.Contains(a.body, fmt.Sprint(limit)) {
			t.Errorf("the limit is not named: %s", a.body)
		}
	}
	check(send(probeClient, "POST", r.url()+"/v1/chat/completions", over, "X-Request-Id", "with-length").wait(t))
	req, err := http.NewRequest("POST", r.url()+"/v1/chat/completions", struct{ *bytes.Reader }{bytes.NewReader([]byte(over))})
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = -1
	resp, err := probeClient.Do(req)
	if err != nil {
		t.Fatalf("a client that sends chunks gets no answer: %v", err)
	}
	a := &answer{status: resp.StatusCode, header: resp.Header}
	a.read(resp.Body, func() {})
	_ = resp.Body.Close()
	check(a)
	// Announced only: the answer does not wait for the body.
	c := dialRaw(t, r.addr)
	c.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000000\r\n\r\n{")
	check(c.answer())
	_ = c.Close() // who is still sending is listened to for a while

	if line := r.accessLine("with-length"); line["status"] != float64(413) || line["reason"] != "request_too_large" {
		t.Errorf("access line %v", line)
	}
	r.waitMetric(`sluice_requests_total{reason="request_too_large",route="chat_completions",status="413"}`, 3)
	if n := r.fleet.stats("decode-0").Requests; n != 1 {
		t.Errorf("decode got %d requests, want 1", n)
	}
}

// curl asks with "Expect: 100-continue" before it sends a big body, and waits a
// second when nobody answers (elazarl/goproxy#367).
func TestCurlWithALargeBody(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("no curl here")
	}
	r := startRouter(t, startSim(t), "--max-payload-size", "4MiB")
	file := func(n int) string {
		path := filepath.Join(t.TempDir(), "body.json")
		if err := os.WriteFile(path, []byte(imageBody(n, "")), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	run := func(n int, extra ...string) string {
		args := append([]string{"-sS", "-i", "--max-time", "100", "-H", "Content-Type: application/json", "-H", "Expect: 100-continue", "--expect100-timeout", "90",
			"--data-binary", "@" + file(n), r.url() + "/v1/chat/completions"}, extra...)
		out, err := exec.Command(curl, args...).CombinedOutput()
		if err != nil {
			t.Errorf("curl with %d bytes: %v %s", n, err, clip(string(out)))
		}
		return string(out)
	}
	start := time.Now()
	if out := run(2 << 20); !strings.HasPrefix(out, "HTTP/1.1 100 Continue") || !strings.Contains(out, "HTTP/1.1 200") {
		t.Errorf("curl got %s", clip(out))
	}
	if d := took(start); d > soon { // it would wait 90 s for the 100
		t.Errorf("curl took %s", d)
	}
	for _, extra := range [][]string{nil, {"-H", "Expect:"}, {"-H", "Expect:", "-H", "Transfer-Encoding: chunked"}} {
		if out := run(8<<20, extra...); !strings.Contains(out, "HTTP/1.1 413") || !strings.Contains(out, "request_too_large") {
			t.Errorf("curl %v got %s", extra, clip(out))
		}
	}
	if out := run(2<<20, "-H", "Expect: wonders"); !strings.Contains(out, "HTTP/1.1 417") && !strings.Contains(out, "HTTP/1.1 200") {
		t.Errorf("curl got %s", clip(out))
	}
}

// What is no request is refused in words, at once, and costs the engines nothing.
func TestBadInput(t *testing.T) {
	t.Parallel()
	r := startRouter(t, startSim(t))
	for name, c := range map[string]struct {
		body   string
		status int
		code   string
	}{
		"not JSON":         {"hello", 400, "invalid_request"},
		"empty":            {"", 400, "invalid_request"},
		"truncated":        {chatBody("")[:40], 400, "invalid_request"},
		"a list":           {"[]", 400, "invalid_request"},
		"deep":             {`{"model":"sim-model","x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, 400, "invalid_request"},
		"6 MB of brackets": {strings.Repeat("[", 6<<20), 400, "invalid_request"},
		"model twice":      {`{"model":"sim-model","model":"other","messages":[]}`, 400, "invalid_request"},
		"stream as text":   {`{"model":"sim-model","stream":"yes","messages":[]}`, 400, "invalid_request"},
		"model as number":  {`{"model":7,"messages":[]}`, 400, "invalid_request"},
		"own room":         {chatBody(`"bootstrap_room":7,`), 400, "invalid_request"},
		"unknown model":    {`{"model":"nobody","messages":[]}`, 404, "model_not_found"},
	} {
		start := time.Now()
		a := send(probeClient, "POST", r.url()+"/v1/chat/completions", c.body).wait(t)
		if a.status != c.status || a.code() != c.code {
			t.Errorf("%s: %s", name, a)
		}
		if d := took(start); d > soon {
			t.Errorf("%s: took %s", name, d)
		}
	}
	if n := len(r.fleet.requests("all")); n != 0 {
		t.Errorf("the engines got %d of them", n)
	}
	r.ask(brief).good(t)
}
