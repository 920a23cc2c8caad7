package generate

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/textmodel"
)

// Which chats are refused for their reasoning, with the templates of real models.
func TestReasoningOfRealModels(t *testing.T) {
	dir := os.Getenv("SLUICE_TEST_TOKENIZERS")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Skip(err)
		}
		dir = filepath.Join(home, ".cache", "sluice", "tokenizers")
	}
	f := func(name, fields, code string) {
		t.Helper()
		m, err := textmodel.FromDir(filepath.Join(dir, name))
		if err != nil {
			t.Logf("left out: %v", err)
			return
		}
		_, err = readBody(t, openai.RouteChatCompletions, `{`+hi+fields+`}`, m, ReadOptions{Context: 1000})
		got := ""
		var e *openai.Error
		if errors.As(err, &e) {
			got = e.Code
		}
		if got != code || (err != nil) != (code != "") {
			t.Errorf("%s%s: %v, want %q", name, fields, err, code)
		}
	}
	f("qwen3", "", CodeUnsupported)
	f("qwen3", `,"chat_template_kwargs":{"enable_thinking":true}`, CodeUnsupported)
	f("qwen3", `,"chat_template_kwargs":{"enable_thinking":false}`, "")
	f("qwen3", `,"reasoning_effort":"none"`, "")
	f("llama3", "", "")
	f("deepseek_v3", "", "")
}
