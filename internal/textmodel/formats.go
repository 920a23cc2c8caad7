package textmodel

import (
	"strings"

	"github.com/sluice-router/sluice/internal/chattemplate"
	"github.com/sluice-router/sluice/internal/tokenizer"
)

// Formats is what a chat template tells of the form of a model's answers. It is a guess by the words that the template has: it decides what is refused, never what is
// taken out of an answer.
type Formats struct {
	// TakesTools: the template shows tools to the model.
	TakesTools bool
	// Tools is how the model writes calls of tools; ToolsUnknown if it takes them and no known form is found, empty if it takes none.
	Tools ToolFormat
	// ThinkOpen and ThinkClose are what the model writes around its reasoning, such as <think>; empty: it has none that is known.
	ThinkOpen, ThinkClose string
	// ThinkSwitch: the template has a variable that turns reasoning on or off. A model without one reasons only where its template begins to.
	ThinkSwitch bool
	// Channels: answers consist of channels (Harmony), of which one is for the user; none of them is plain text.
	Channels bool
}

// ToolFormat is a form of calls of tools.
type ToolFormat string

// The forms that are known by their marks.
const (
	ToolsHermes   ToolFormat = "hermes"   // <tool_call>{"name": …}</tool_call>
	ToolsXML      ToolFormat = "xml"      // <tool_call><function=…>
	ToolsLlama    ToolFormat = "llama"    // {"name": …, "parameters": …}, <|python_tag|>
	ToolsMistral  ToolFormat = "mistral"  // [TOOL_CALLS]
	ToolsDeepSeek ToolFormat = "deepseek" // <｜tool▁calls▁begin｜>
	ToolsHarmony  ToolFormat = "harmony"  // to=functions.… in a channel
	ToolsUnknown  ToolFormat = "unknown"
)

func formatsOf(t *chattemplate.Template, tok *tokenizer.Tokenizer) Formats {
	source := t.Source()
	has := func(marks ...string) bool {
		for _, mark := range marks {
			if strings.Contains(source, mark) {
				return true
			}
		}
		return false
	}
	f := Formats{TakesTools: t.Facts().Uses("tools")}
	_, channel := tok.TokenID("<|channel|>")
	f.Channels = channel && has("<|channel|>")
	for _, pair := range [...][2]string{{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"<seed:think>", "</seed:think>"}, {"<|channel>", "<channel|>"}} {
		if has(pair[1]) {
			f.ThinkOpen, f.ThinkClose = pair[0], pair[1]
			f.ThinkSwitch = t.Facts().Uses("enable_thinking") || t.Facts().Uses("thinking")
			break
		}
	}
	if !f.TakesTools {
		return f
	}
	switch {
	case f.Channels:
		f.Tools = ToolsHarmony
	case has("[TOOL_CALLS]"):
		f.Tools = ToolsMistral
	case has("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜DSML｜"):
		f.Tools = ToolsDeepSeek
	case has("<function="):
		f.Tools = ToolsXML
	case has("<tool_call>"):
		f.Tools = ToolsHermes
	case has("<|python_tag|>", `"parameters": dictionary of argument name`, `{"name": function name, "parameters":`):
		f.Tools = ToolsLlama
	default:
		f.Tools = ToolsUnknown
	}
	return f
}
