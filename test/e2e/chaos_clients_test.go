package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// otherModel is what engines are called for a while.
const otherModel = "other-model"

// chaosClients send requests one after another, each with a word of its own in the prompt
// that its answer must repeat, and judge what they get. Some leave midway.
type chaosClients struct {
	t     testing.TB
	url   string
	form  chaosForm
	http  *http.Client
	began time.Time
	stop  atomic.Bool
	wg    sync.WaitGroup

	mu sync.Mutex
	// guarded by mu
	outcomes map[string]int
	wrong    []string // the first of them
	wrongs   int
}

// requestBound is within how much time every request ends, and endBound what the clients
// allow it, on a machine that is busy with all these processes.
const (
	requestBound = 6 * time.Second
	endBound     = 6 * requestBound
)

// startChaosClients starts n clients.
func startChaosClients(t testing.TB, url string, form chaosForm, n int, seed uint64) *chaosClients {
	c := &chaosClients{t: t, url: url, form: form, http: clients(t), began: time.Now(), outcomes: make(map[string]int)}
	c.http.Timeout = endBound
	for i := range n {
		c.wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)+1))
			for k := 0; !c.stop.Load(); k++ {
				c.ask(rng, fmt.Sprintf("nonce-%dx%dx%d", seed, i, k))
			}
		})
	}
	return c
}

// end lets the requests that are under way end.
func (c *chaosClients) end() {
	c.stop.Store(true)
	c.wg.Wait()
	c.http.CloseIdleConnections()
}

// ask sends one request and judges its answer.
func (c *chaosClients) ask(rng *rand.Rand, nonce string) {
	most := 1 + rng.IntN(10)
	model := "sim-model"
	if rng.IntN(12) == 0 {
		model = otherModel
	}
	pad := strings.Repeat("a ", rng.IntN(600))
	if rng.IntN(40) == 0 {
		pad = strings.Repeat("long ", 40_000)
	}
	prompt := `"messages":[{"role":"user","content":"` + pad + nonce + ` please"}]`
	path := "/v1/chat/completions"
	if rng.IntN(4) == 0 {
		path, prompt = "/v1/completions", `"prompt":"`+pad+nonce+` please"`
	}
	stream := rng.IntN(2) == 0
	start := time.Now()
	call := send(c.http, "POST", c.url+path, fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":%t,%s}`, model, most, stream, prompt), "X-Request-Id", nonce)
	leaves := rng.IntN(6) == 0
	if leaves {
		select {
		case <-call.done:
		case <-time.After(time.Duration(rng.IntN(300)) * time.Millisecond):
		}
		call.cancel()
	}
	<-call.done
	outcome, wrong := judge(&call.answer, c.form.answer(nonce, most), stream, leaves, model)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes[outcome]++
	if wrong == "" {
		return
	}
	if c.wrongs++; len(c.wrong) < 20 {
		c.wrong = append(c.wrong, fmt.Sprintf("sent %.3fs, ended %.3fs: %s: %s", start.Sub(c.began).Seconds(), time.Since(c.began).Seconds(), wrong, &call.answer))
	}
}

// answer is the text that engines answer with.
func (f chaosForm) answer(nonce string, tokens int) (text string) {
	if f.grpc {
		return sim.NonceAnswer(nonce, tokens)
	}
	for k := range tokens {
		text += fmt.Sprintf(" %s.%d", nonce, k+1)
	}
	return text
}

// judge says how an answer ended, and what is wrong about it: it must be the request's own,
// once, and whole, or be seen to end.
func judge(a *answer, want string, stream, leaves bool, model string) (outcome, wrong string) {
	got, readable := a.text()
	if got != want && strings.HasPrefix(want, got) && a.whole() && readable && !leaves {
		return "short", fmt.Sprintf("a whole answer that ends with %q", clip(got))
	}
	if strings.HasPrefix(want, got) {
		got = ""
	}
	switch {
	case a.status == http.StatusOK && got != "" && !(leaves && !stream):
		return "foreign", fmt.Sprintf("the answer has %q beside its own tokens", clip(got))
	case leaves:
		return "left", ""
	case a.status == 0 && strings.Contains(fmt.Sprint(a.err), "Client.Timeout"), a.took > endBound:
		return "late", "no end within its bound"
	case a.whole() && readable:
		return "good", ""
	case a.whole():
		return "unreadable", "an answer that cannot be read"
	case a.status == http.StatusOK && a.failed == "" && a.err == nil:
		return "cut", "cut, and nothing says so"
	case a.status == http.StatusOK:
		return "broken", ""
	case a.status == 0:
		return "no answer", "no answer at all"
	}
	outcome = fmt.Sprint(a.status, " ", a.header.Get("X-Smg-Error-Code"))
	if model == otherModel {
		outcome += " of the other model"
	}
	var shape struct {
		Error any `json:"error"`
	}
	var plain struct {
		Message any `json:"message"`
	}
	if json.Unmarshal([]byte(a.body), &shape) != nil || shape.Error == nil && (json.Unmarshal([]byte(a.body), &plain) != nil || plain.Message == nil) {
		return outcome, "an error without words"
	}
	allowed := []int{429, 500, 502, 503, 504}
	if model == otherModel {
		allowed = append(allowed, 404)
	}
	if !slices.Contains(allowed, a.status) {
		return outcome, "the client is told that it is to blame"
	}
	return outcome, ""
}

// text is the generated text that an answer has, as far as it came. It is not readable if
// the body is not what such an answer is.
func (a *answer) text() (text string, readable bool) {
	if a.status != http.StatusOK {
		return "", true
	}
	type choices struct {
		Choices []struct {
			Text           string
			Message, Delta struct{ Content string }
		}
	}
	var b strings.Builder
	add := func(data string) bool {
		var v choices
		if json.Unmarshal([]byte(data), &v) != nil {
			return false
		}
		for _, c := range v.Choices {
			b.WriteString(c.Text + c.Message.Content + c.Delta.Content)
		}
		return true
	}
	if !a.streams {
		readable = add(a.body)
		return b.String(), readable
	}
	readable = true
	for line := range strings.Lines(a.body) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if ok && data != "[DONE]" && !add(data) {
			readable = false
		}
	}
	return b.String(), readable
}

// report fails the test for what was wrong, and says how requests ended.
func (c *chaosClients) report() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t.Logf("requests ended so: %v", c.outcomes)
	for _, w := range c.wrong {
		c.t.Error(w)
	}
	if n := c.wrongs - len(c.wrong); n > 0 {
		c.t.Errorf("and %d more", n)
	}
	if c.outcomes["good"] == 0 {
		c.t.Error("no request was served")
	}
}

// What the clients of the chaos run must see is seen.
func TestJudgeOfAnswers(t *testing.T) {
	t.Parallel()
	const one, two = `data: {"choices":[{"delta":{"content":" nonce-a.1"}}]}` + "\n\n", `data: {"choices":[{"delta":{"content":" nonce-a.2"}}]}` + "\n\n"
	const done, failed = "data: [DONE]\n\n", `data: {"error":{"message":"cut"}}` + "\n\n"
	f := func(want, body string, status int, streams bool) {
		t.Helper()
		a := &answer{status: status, streams: streams, header: http.Header{}}
		a.read(strings.NewReader(body), func() {})
		outcome, wrong := judge(a, chaosForm{}.answer("nonce-a", 2), streams, false, "sim-model")
		if (wrong != "") != strings.HasPrefix(want, "!") || outcome != strings.TrimPrefix(want, "!") {
			t.Errorf("%q: %s (%s), want %s", body, outcome, wrong, want)
		}
	}
	f("good", one+two+done, 200, true)
	f("broken", one+failed, 200, true)
	f("!cut", one+two, 200, true)
	f("!short", one+done, 200, true)
	f("!foreign", one+one+two+done, 200, true)
	f("!foreign", one+two+two+done, 200, true)
	f("!foreign", two+one+done, 200, true)
	f("!foreign", strings.ReplaceAll(one+two+done, "nonce-a", "nonce-b"), 200, true)
	f("good", `{"choices":[{"message":{"content":" nonce-a.1 nonce-a.2"}}]}`, 200, false)
	f("!short", `{"choices":[{"message":{"content":" nonce-a.1"}}]}`, 200, false)
	f("!unreadable", `{"choices":[{"message":{"content":" nonce-a.1 nonc`, 200, false)
	f("503 ", `{"error":{"message":"no"}}`, 503, false)
	f("!503 ", `no`, 503, false)
	f("!400 ", `{"error":{"message":"no"}}`, 400, false)
}
