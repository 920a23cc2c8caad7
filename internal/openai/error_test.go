package openai

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/text"
)

func TestErrorTable(t *testing.T) {
	a := AdmissionInfo{Gate: "prefill", Resource: "prefill_slots", Class: "batch", Retryable: true, QueueDepth: 100}
	early := a
	early.Predicted, early.EstimatedWait = true, 7*time.Second
	const retry = 1500 * time.Millisecond
	for _, c := range []struct {
		e          *Error
		status     int
		typ, code  string
		retryAfter string
		admission  bool
		says       []string
	}{
		{PrefillQueueFull(100, a, retry), 429, "rate_limit_error", "pd_prefill_queue_full", "2", true, []string{"100 waiting", "limit 100", "--prefill-queue-size", "try again in 2 s"}},
		{QueueFull(100, a, retry), 429, "rate_limit_error", "queue_full", "2", true, []string{"limit 100"}},
		{PrefillQueueTimeout(2*time.Second, a, retry), 429, "rate_limit_error", "pd_prefill_queue_timeout", "2", true, []string{"2s", "--prefill-queue-timeout-secs"}},
		{QueueTimeout(2*time.Second, a, retry), 429, "rate_limit_error", "queue_timeout", "2", true, []string{"2s"}},
		{ClassQueueFull(LimitInfo{"batch", "raw_isl_tokens", 90, 80}, a, retry, 0), 429, "rate_limit_error", "policy_class_queue_full", "2", true, []string{`"batch"`, "raw_isl_tokens is 90, limit 80"}},
		{ClassQueueFull(LimitInfo{"batch", "requests", 9, 8}, a, retry, StatusOverloaded), 529, "overloaded_error", "policy_class_queue_full", "2", true, nil},
		{QueueDeadlineExceeded(time.Second, a, retry, 0), 429, "rate_limit_error", "queue_deadline_exceeded", "2", true, []string{"1s"}},
		{QueueDeadlineExceeded(time.Second, early, retry, 0).Predicted(time.Second), 429, "rate_limit_error", "queue_deadline_exceeded", "2", true, []string{"wait about 7s", "may wait 1s", "--refuse-early"}},
		{AllWorkersOverloaded(a, retry, 0), 429, "rate_limit_error", "all_workers_overloaded", "2", true, nil},
		{NoAvailableWorkers("m", "prefill", 5*time.Second), 503, "server_error", "no_available_workers", "5", false, []string{"no prefill worker", `"m"`}},
		{NoAvailableWorkers("", "", 5*time.Second), 503, "server_error", "no_available_workers", "5", false, []string{"no worker is ready"}},
		{WorkersUnavailable("m", "decode", a, retry), 503, "server_error", "no_available_workers", "2", true, nil},
		{ModelNotFound("x"), 404, "invalid_request_error", "model_not_found", "", false, []string{`"x"`, "/v1/models"}},
		{RouteNotFound("/v1/x"), 404, "invalid_request_error", "route_not_found", "", false, []string{`"/v1/x"`}},
		{InvalidRequest("n", "n is %d", 0), 400, "invalid_request_error", "invalid_request", "", false, []string{"n is 0"}},
		{InvalidTarget("http://w", "it is draining"), 400, "invalid_request_error", "invalid_target", "", false, []string{"http://w", "draining"}},
		{InvalidAPIKey(), 401, "invalid_request_error", "invalid_api_key", "", false, []string{"Bearer"}},
		{RequestTooLarge(256 << 20), 413, "invalid_request_error", "request_too_large", "", false, []string{"268435456 bytes"}},
		{BufferFull(1 << 30), 503, "server_error", "buffer_full", "1", false, []string{"1073741824 bytes", "--max-buffered-bytes"}},
		{UpstreamFailed("prefill", "connection refused", errors.New("dial 10.0.0.1:80")), 502, "server_error", "upstream_failed", "", false, []string{"prefill engine failed: connection refused"}},
		{UpstreamTimeout("", "first byte", time.Minute, "--first-byte-timeout-secs"), 504, "server_error", "upstream_timeout", "", false, []string{"no first byte within 1m0s", "--first-byte-timeout-secs"}},
		{Draining(), 503, "server_error", "draining", "1", false, nil},
		{Internal(errors.New("secret")), 500, "server_error", "internal_error", "", false, nil},
	} {
		for _, shape := range []Shape{ShapeOpenAI, ShapeAnthropic} {
			w := httptest.NewRecorder()
			if err := c.e.WriteResponse(w, shape); err != nil {
				t.Fatal(err)
			}
			r := w.Result()
			if r.StatusCode != c.status || r.Header.Get("x-smg-error-code") != c.code || r.Header.Get("Retry-After") != c.retryAfter ||
				r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Content-Length") != strconv.Itoa(w.Body.Len()) {
				t.Errorf("%s: %d %v", c.code, r.StatusCode, r.Header)
			}
			var body struct {
				Type  string
				Error struct {
					Message, Type, Code string
					Param               *string
					Admission           *struct {
						Gate, Resource, Class string
						Retryable             bool
						RetryAfterMS          int64 `json:"retry_after_ms"`
						QueueDepth            int   `json:"queue_depth"`
					}
					Details map[string]any
				}
			}
			if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
				t.Fatalf("%s: %v in %s", c.code, err, w.Body)
			}
			got := body.Error
			if got.Message != c.e.Message || (got.Admission != nil) != c.admission || (got.Details != nil) != (c.e.Limit != nil) {
				t.Errorf("%s: %s", c.code, w.Body)
			}
			if shape == ShapeOpenAI && (got.Type != c.typ || got.Code != c.code || (got.Param == nil) != (c.e.Param == "")) {
				t.Errorf("%s: %s", c.code, w.Body)
			}
			if shape == ShapeAnthropic && (body.Type != "error" || got.Type == "") {
				t.Errorf("%s: %s", c.code, w.Body)
			}
			if ad := got.Admission; ad != nil && (ad.Gate != "prefill" || ad.Class != "batch" || !ad.Retryable || ad.RetryAfterMS != 1500 || ad.QueueDepth != 100) {
				t.Errorf("%s: %s", c.code, w.Body)
			}
			if strings.Contains(w.Body.String(), "10.0.0.1") || strings.Contains(w.Body.String(), "secret") {
				t.Errorf("%s tells its cause: %s", c.code, w.Body)
			}
		}
		for _, s := range c.says {
			if !strings.Contains(c.e.Message, s) {
				t.Errorf("%s: %q does not say %q", c.code, c.e.Message, s)
			}
		}
	}
}

func TestErrorIsAnError(t *testing.T) {
	cause := errors.New("dial failed")
	var err error = UpstreamFailed("decode", "unreachable", cause)
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "dial failed") || !strings.HasPrefix(err.Error(), "upstream_failed: ") {
		t.Errorf("%v", err)
	}
	if e := (&Error{RetryAfter: 100 * time.Millisecond}); e.RetryAfterSeconds() != 1 {
		t.Errorf("a pause of 100 ms is sent as %d s", e.RetryAfterSeconds())
	}
	if e := InvalidAPIKey().WithCause(cause); !errors.Is(e, cause) || e.RetryAfterSeconds() != 0 {
		t.Errorf("%v", e)
	}
}

func TestErrorMessagesAreBoundedAndClean(t *testing.T) {
	e := InvalidRequest("", "%s", strings.Repeat("é", 5000)+"\xff\"\n")
	body := e.AppendJSON(nil, ShapeOpenAI)
	if len(body) > maxErrorMessage+200 || !json.Valid(body) {
		t.Errorf("%d bytes, valid %t", len(body), json.Valid(body))
	}
	if b, err := json.Marshal(e); err != nil || !json.Valid(b) {
		t.Errorf("%v", err)
	}
	const whole = "aé€🙂bcdef"
	for n := range 12 {
		if got := text.Clip(whole, n+3); len(got) > n+3+len("…") || !strings.HasPrefix(whole, strings.TrimSuffix(got, "…")) {
			t.Errorf("clip to %d: %q", n+3, got)
		}
	}
}

// A body is not refused by a limit that the answer does not name.
func TestErrorsNameTheLimit(t *testing.T) {
	w := httptest.NewRecorder()
	if err := RequestTooLarge(2097152).WriteResponse(w, ShapeOpenAI); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), "2097152 bytes (--max-payload-size)") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// While engines are still loading, the error says so instead of being a bare 502.
func TestErrorSaysThatNoWorkerIsReady(t *testing.T) {
	w := httptest.NewRecorder()
	if err := NoAvailableWorkers("m", "decode", 3*time.Second).WriteResponse(w, ShapeOpenAI); err != nil {
		t.Fatal(err)
	}
	if w.Code != 503 || w.Header().Get("Retry-After") != "3" || !strings.Contains(w.Body.String(), "no decode worker") {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}
