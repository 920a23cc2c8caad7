package translate

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

// TestSDKs has the official Python SDKs read translations of canned engine answers; see
// test/sdk/translate.py. It runs only if a Python with the SDKs is named.
func TestSDKs(t *testing.T) {
	python := os.Getenv("SLUICE_SDK_PYTHON")
	if python == "" {
		t.Skip("SLUICE_SDK_PYTHON names no Python with the openai and anthropic packages")
	}
	server := httptest.NewServer(http.HandlerFunc(serveTranslated))
	defer server.Close()
	out, err := exec.CommandContext(t.Context(), python, "../../test/sdk/translate.py", server.URL).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// serveTranslated serves the canned answer that the model's name asks for.
func serveTranslated(w http.ResponseWriter, req *http.Request) {
	route := openai.RouteResponses
	if strings.HasSuffix(req.URL.Path, "/messages") {
		route = openai.RouteMessages
	}
	body, _ := io.ReadAll(req.Body)
	chat, x, err := translate(route, string(body), testOptions)
	var refused *openai.Error
	if errors.As(err, &refused) {
		_ = refused.WriteResponse(w, route.Shape())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if strings.Contains(string(chat), `"model":"busy"`) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write(x.AppendError(nil, http.StatusTooManyRequests, []byte(`{"object":"error","message":"busy","code":429}`)))
		return
	}
	if !strings.Contains(string(chat), `"stream":true`) {
		message := `"content":"Hello \ud83d\ude00\n"`
		if strings.Contains(string(chat), `"model":"tools"`) {
			message += `,"reasoning_content":"hm","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"a\":1}"}},{"id":"c2","function":{"name":"f","arguments":"{}"}}]`
		}
		switch {
		case strings.Contains(string(chat), `"model":"refusal"`):
			message = `"content":"Well.","refusal":"I can't."`
		case strings.Contains(string(chat), `"model":"cut"`):
			message = `"content":null,"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"a\":1,"}}]`
		}
		answer, err := x.Answer([]byte(chatWhole(`"message":{`+message+`},"finish_reason":"stop"`)), 0)
		if err != nil {
			panic(err)
		}
		_, _ = w.Write(answer)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	events := []string{`"delta":{"role":"assistant","content":""}`, `"delta":{"content":"Hello "}`, `"delta":{"content":"\ud83d\ude00\n"},"finish_reason":"stop"`, usageEvent}
	switch {
	case strings.Contains(string(chat), `"model":"tools"`):
		events = []string{`"delta":{"reasoning_content":"hm"}`, `"delta":{"content":"I call"}`,
			`"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{\"a\":"}}]}`, `"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}`,
			`"delta":{"tool_calls":[{"index":1,"id":"c2","function":{"name":"f","arguments":"{}"}}]}`, `"delta":{},"finish_reason":"tool_calls"`, usageEvent}
	case strings.Contains(string(chat), `"model":"refusal"`):
		events = []string{`"delta":{"content":"Well."}`, `"delta":{"refusal":"I "}`, `"delta":{"refusal":"can't."}`, `"delta":{},"finish_reason":"stop"`, usageEvent}
	case strings.Contains(string(chat), `"model":"cut"`):
		events = []string{`"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{\"a\""}}]}`, `"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1,"}}]}`, `"delta":{},"finish_reason":"stop"`, usageEvent}
	case strings.Contains(string(chat), `"model":"broken"`):
		events = []string{`"delta":{"content":"Hello "}`, `{"error":{"message":"KV transfer failed","code":500}}`}
	}
	s := x.Stream(0)
	write := func(b []byte) { _, _ = w.Write(b) }
	err = s.Feed([]byte(chatStream(events...)), write)
	var told *EngineError
	if errors.As(err, &told) {
		s.Fail(told.AsError(), write)
	} else if err != nil {
		panic(err)
	}
}
