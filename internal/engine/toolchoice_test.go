package engine

import (
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

func TestPrefillLegForcesNoTool(t *testing.T) {
	for _, c := range []struct {
		route    openai.Route
		in, leg  string
		logprobs bool
	}{
		{openai.RouteChatCompletions, `"tool_choice":"required"`, `"tool_choice":"auto"`, false},
		{openai.RouteChatCompletions, `"tool_choice":{"type":"function","function":{"name":"f"}}`, `"tool_choice":"auto"`, false},
		{openai.RouteChatCompletions, `"tool_choice":"none"`, `"tool_choice":"none"`, false},
		{openai.RouteChatCompletions, `"tool_choice":"auto"`, `"tool_choice":"auto"`, false},
		{openai.RouteChatCompletions, `"prompt_logprobs":1`, "", true},
		{openai.RouteChatCompletions, `"prompt_logprobs":null`, "", false},
	} {
		p, err := openai.Peek(c.route, []byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"a":1}],`+c.in+`}`), openai.PeekOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var s openai.Splicer
		s.Reset(p)
		legs := &vllmLegs{Request: p, connector: &movesByItself}
		legs.EditPrefill(&s)
		if out := string(s.AppendBytes(nil)); !strings.Contains(out, c.leg) || !strings.Contains(out, `"tools":[{"a":1}]`) {
			t.Errorf("%s: %s", c.in, out)
		}
		if legs.Dispensable(400) != (c.leg == `"tool_choice":"auto"` && !strings.Contains(c.in, "auto")) || wantsPromptLogprobs(p) != c.logprobs {
			t.Errorf("%s: %v %v", c.in, legs.Dispensable(400), wantsPromptLogprobs(p))
		}
	}
}
