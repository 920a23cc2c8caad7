package dispatch

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// Events of the Messages and Responses APIs as engines send them.
const (
	messageStart = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"stop_reason\":null,\"usage\":{\"input_tokens\":7,\"output_tokens\":0}}}\n\n"
	messageText  = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n" +
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"half\"}}\n\n"
	messageStop   = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	responseStart = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"r\",\"object\":\"response\",\"status\":\"in_progress\",\"error\":null,\"output\":[]}}\n\n"
	responseText  = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"delta\":\"half\"}\n\n"
)

func messageDelta(reason string) string {
	return "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":" + reason + ",\"stop_sequence\":null},\"usage\":{\"output_tokens\":3}}\n\n"
}

func responseEnd(event, members string) string {
	return "event: " + event + "\ndata: {\"type\":\"" + event + "\",\"sequence_number\":2,\"response\":{\"id\":\"r\",\"object\":\"response\",\"output\":[]," + members + "}}\n\n"
}

// The Messages and Responses APIs have words of their own for an answer that the engine
// gave up. They are read as those of chat: another attempt follows while the client has
// been sent nothing, else the answer does not look well ended.
func TestAnswersGivenUpInMessagesAndResponses(t *testing.T) {
	t.Parallel()
	const object = `{"type":"abort","message":"out of luck","status_code":503}`
	message := func(reason string) string {
		return `{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"half"}],"stop_reason":` + reason + `,"usage":{"input_tokens":7,"output_tokens":3}}`
	}
	response := func(members string) string {
		return `{"id":"r","object":"response","output":[],` + members + `,"usage":{"input_tokens":7,"output_tokens":3}}`
	}
	for name, c := range map[string]struct {
		path, answer, begun string // begun: what of a stream comes before the end
	}{
		"message abort":                  {path: "/v1/messages", answer: message(`"abort"`)},
		"message error":                  {path: "/v1/messages", answer: message(`"error"`)},
		"message object":                 {path: "/v1/messages", answer: message(object)},
		"message large":                  {path: "/v1/messages", answer: strings.Replace(message(`"abort"`), "half", strings.Repeat("half", 1<<19), 1)},
		"stream abort":                   {path: "/v1/messages", answer: messageDelta(`"abort"`) + messageStop, begun: messageStart},
		"stream error":                   {path: "/v1/messages", answer: messageDelta(`"error"`) + messageStop, begun: messageStart + messageText},
		"stream object":                  {path: "/v1/messages", answer: messageDelta(object) + messageStop, begun: messageStart + messageText},
		"response failed":                {path: "/v1/responses", answer: response(`"status":"failed"`)},
		"response cancelled":             {path: "/v1/responses", answer: response(`"status":"cancelled"`)},
		"response incomplete":            {path: "/v1/responses", answer: response(`"status":"incomplete","error":{"message":"boom"}`)},
		"response error":                 {path: "/v1/responses", answer: `{"error":{"message":"boom"}}`},
		"response stream failed":         {path: "/v1/responses", answer: responseEnd("response.completed", `"status":"failed"`), begun: responseStart},
		"response stream failed late":    {path: "/v1/responses", answer: responseEnd("response.completed", `"status":"failed","error":{"message":"boom"}`), begun: responseStart + responseText},
		"response stream cancelled":      {path: "/v1/responses", answer: responseEnd("response.cancelled", `"status":"cancelled"`), begun: responseStart + responseText},
		"response stream incomplete":     {path: "/v1/responses", answer: responseEnd("response.incomplete", `"status":"incomplete","error":{"message":"boom"}`), begun: responseStart + responseText},
		"response stream no room for it": {path: "/v1/responses", answer: responseEnd("response.incomplete", `"incomplete_details":{"reason":"error"}`), begun: responseStart + responseText},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			o := answering(func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
				contentType := typeJSON
				if c.begun != "" {
					contentType = typeEventStream
				}
				if calls.Add(1) > 1 {
					switch {
					case c.begun == "" && c.path == "/v1/messages":
						write(w, contentType, message(`"end_turn"`))
					case c.begun == "":
						write(w, contentType, response(`"status":"completed","error":null`))
					case c.path == "/v1/messages":
						write(w, contentType, messageStart+messageText, messageDelta(`"end_turn"`)+messageStop)
					default:
						write(w, contentType, responseStart+responseText, responseEnd("response.completed", `"status":"completed","error":null`))
					}
					return true
				}
				write(w, contentType, c.begun, c.answer)
				return true
			})
			o.Backend = sim.VLLM
			r := newRig(t, rigOptions{retries: 2, breaker: noBreaker, sim: sim.Options{Regular: 2, Worker: o}})
			body := `{"model":"sim-model","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`
			if c.path == "/v1/responses" {
				body = `{"model":"sim-model","input":"hi"}`
			}
			if c.begun != "" {
				body = strings.Replace(body, "{", `{"stream":true,`, 1)
			}
			a := r.do(context.Background(), c.path, body)
			rec := r.waitRecord(0)
			if strings.Contains(c.begun, "half") || len(c.answer) > 1<<20 {
				ended := strings.Contains(a.body, "message_stop") || strings.Contains(a.body, "response.completed") ||
					strings.Contains(a.body, "response.incomplete") || strings.Contains(a.body, "response.cancelled")
				if a.status != 200 && len(c.answer) < 1<<20 || ended || rec.Attempts != 1 || rec.Reason != reasonEngineError ||
					len(c.answer) < 1<<20 && !strings.Contains(a.body, "error") {
					t.Errorf("%d %v, %d attempts, %s: %.900s", a.status, a.err, rec.Attempts, rec.Reason, a.body)
				}
				return
			}
			if a.status != 200 || a.err != nil || rec.Attempts != 2 || rec.Reason != reasonOK || strings.Contains(a.body, "abort") || strings.Contains(a.body, "boom") {
				t.Errorf("%d %v, %d attempts, %s: %s", a.status, a.err, rec.Attempts, rec.Reason, a.body)
			}
		})
	}
}
