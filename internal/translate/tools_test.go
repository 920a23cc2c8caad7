package translate

import (
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

const (
	messagesFunction  = `{"name":"f","input_schema":{"type":"object"}}`
	responsesFunction = `{"type":"function","name":"f"}`
)

// Agents send tools that the provider runs, and tools of newer types, beside their
// functions: one such tool must not make each request a 400.
func TestToolsOfOtherTypesAreLeftOut(t *testing.T) {
	for _, c := range []struct {
		route             openai.Route
		tools, want, note string
	}{
		{openai.RouteMessages, messagesFunction + `,{"type":"web_search_20250305","name":"web_search","max_uses":5}`, "f", "web_search_20250305 (web_search)"},
		{openai.RouteMessages, `{"type":"computer_20250124","name":"computer","display_width_px":1},` + messagesFunction, "f", "computer_20250124 (computer)"},
		{openai.RouteMessages, `{"type":"bash_20250124","name":"bash"},` + messagesFunction + `,{"type":"text_editor_20250728","name":"str_replace_based_edit_tool"},{"name":"g","input_schema":{}}`, "f,g",
			"bash_20250124 (bash), text_editor_20250728 (str_replace_based_edit_tool)"},
		{openai.RouteMessages, `{"type":"code_execution_20250825","name":"code_execution"}`, "", "code_execution_20250825 (code_execution)"},
		{openai.RouteMessages, ``, "", ""},
		{openai.RouteMessages, messagesFunction + `,{"name":"g","input_schema":{},"allowed_callers":["code_execution_20250825"]}`, "f", "allowed_callers (g)"},
		{openai.RouteResponses, `{"type":"function","name":"g","async":true},{"type":"function","name":"h","allowed_callers":["programmatic"]},` + responsesFunction, "f", "async (g), allowed_callers (h)"},
		{openai.RouteResponses, `{"type":"function","name":"g","defer_loading":true,"output_schema":{"type":"object"}},` + responsesFunction, "g,f", ""},
		{openai.RouteResponses, responsesFunction + `,{"type":"custom","name":"apply_patch","format":{"type":"grammar","syntax":"lark","definition":"x"}}`, "f", "custom (apply_patch)"},
		{openai.RouteResponses, `{"type":"namespace","name":"n","tools":[{"type":"function","name":"x"}]},` + responsesFunction, "f", "namespace (n)"},
		{openai.RouteResponses, `{"type":"web_search"},{"type":"local_shell"},` + responsesFunction + `,{"type":"image_generation"},{"type":"mcp","server_label":"x"}`, "f",
			"web_search, local_shell, image_generation, mcp"},
		{openai.RouteResponses, `{"type":"never \"seen\"\n"}`, "", "never??seen??"},
		{openai.RouteResponses, strings.Repeat(`{"type":"a"},`, 11) + responsesFunction, "f", strings.TrimSuffix(strings.Repeat("a, ", 8), ", ") + " and 3 more"},
		{openai.RouteResponses, ``, "", ""},
	} {
		for _, choice := range []string{"", "auto"} {
			body, told := `{"model":"m","input":"q","tools":[`+c.tools+`]`, `"auto"`
			if c.route == openai.RouteMessages {
				body, told = messagesHead+`[{"role":"user","content":"hi"}],"tools":[`+c.tools+`]`, `{"type":"auto"}`
			}
			if choice != "" {
				body += `,"tool_choice":` + told
			}
			chat, x := translated(t, c.route, body+"}")
			var names []string
			for _, part := range strings.Split(chat, `"function":{"name":"`)[1:] {
				names = append(names, part[:strings.IndexByte(part, '"')])
			}
			if got := strings.Join(names, ","); got != c.want || strings.Contains(chat, `"tools"`) != (c.want != "") ||
				strings.Contains(chat, "tool_choice") != (c.want != "" && choice != "") {
				t.Errorf("%s became %s", c.tools, chat)
			}
			note := ""
			if c.note != "" {
				note = "tools left out: " + c.note
			}
			if x.Note() != note {
				t.Errorf("%s: note %q, want %q", c.tools, x.Note(), note)
			}
			if r, ok := x.(*Responses); ok && strings.Contains(string(r.echo), `"type":"function"`) != (c.want != "") {
				t.Errorf("%s: the response repeats %s", c.tools, r.echo)
			}
		}
	}
}

func TestChoicesOfToolsThatAreLeftOut(t *testing.T) {
	for _, c := range []struct {
		route         openai.Route
		tools, choice string
		param         string
	}{
		{openai.RouteMessages, `{"type":"web_search_20250305","name":"web_search"}`, `{"type":"any"}`, "tool_choice"},
		{openai.RouteMessages, messagesFunction + `,{"type":"web_search_20250305","name":"web_search"}`, `{"type":"tool","name":"web_search"}`, "tool_choice"},
		{openai.RouteMessages, messagesFunction + `,{"type":"web_search_20250305","name":"web_search"}`, `{"type":"tool","name":"f"}`, ""},
		{openai.RouteMessages, messagesFunction + `,{"type":"web_search_20250305","name":"web_search"}`, `{"type":"any"}`, ""},
		{openai.RouteResponses, `{"type":"web_search"}`, `"required"`, "tool_choice"},
		{openai.RouteResponses, responsesFunction + `,{"type":"web_search"}`, `"required"`, ""},
		{openai.RouteResponses, responsesFunction + `,{"type":"web_search"}`, `{"type":"web_search"}`, "tool_choice.type"},
		{openai.RouteResponses, responsesFunction + `,{"type":"custom","name":"p"}`, `{"type":"custom","name":"p"}`, "tool_choice.type"},
		{openai.RouteResponses, responsesFunction + `,{"type":"custom","name":"p"}`, `{"type":"function","name":"p"}`, "tool_choice"},
		{openai.RouteResponses, responsesFunction + `,{"type":"custom","name":"p"}`, `{"type":"function","name":"f"}`, ""},
	} {
		body := `{"model":"m","input":"q","tools":[` + c.tools + `],"tool_choice":` + c.choice + `}`
		if c.route == openai.RouteMessages {
			body = messagesHead + `[],"tools":[` + c.tools + `],"tool_choice":` + c.choice + `}`
		}
		_, _, err := translate(c.route, body, testOptions)
		if c.param == "" {
			if err != nil {
				t.Errorf("%s: %v", body, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s passed", body)
		} else if e := refusal(t, err); e.Param != c.param || e.Code != codeUntranslatable {
			t.Errorf("%s: param %q, code %q", body, e.Param, e.Code)
		}
	}
}

func TestToolsAreRefusedByOption(t *testing.T) {
	for _, c := range []struct {
		route       openai.Route
		body, param string
	}{
		{openai.RouteMessages, messagesHead + `[],"tools":[` + messagesFunction + `,{"type":"web_search_20250305","name":"web_search"}]}`, "tools[1].type"},
		{openai.RouteResponses, `{"model":"m","input":"q","tools":[{"type":"custom","name":"p"}]}`, "tools[0].type"},
		{openai.RouteResponses, `{"model":"m","input":"q","include":["file_search_call.results"]}`, "include[0]"},
	} {
		opts := testOptions
		opts.RefuseTools = true
		_, _, err := translate(c.route, c.body, opts)
		if err == nil {
			t.Errorf("%s passed", c.body)
		} else if e := refusal(t, err); e.Param != c.param || e.Code != codeUntranslatable {
			t.Errorf("%s: param %q, code %q", c.body, e.Param, e.Code)
		}
		if _, _, err := translate(c.route, c.body, testOptions); err != nil {
			t.Errorf("%s: %v", c.body, err)
		}
	}
}

// Chat templates accept one system message, the first. Agents put system messages
// between and after the turns, and send instructions beside developer items.
func TestSystemMessagesBecomeOneThatIsFirst(t *testing.T) {
	const u, a = `{"role":"user","content":"u"}`, `{"role":"assistant","content":"a"}`
	for _, c := range []struct {
		route      openai.Route
		body, want string
	}{
		{openai.RouteMessages, `"system":"top","messages":[` + u + `,` + a + `,` + u + `,{"role":"system","content":"late"}]`,
			`{"role":"system","content":"top\n\nlate"},` + u + `,` + a + `,` + u},
		{openai.RouteMessages, `"system":"top","messages":[{"role":"system","content":"first"},` + u + `]`,
			`{"role":"system","content":"top\n\nfirst"},` + u},
		{openai.RouteMessages, `"messages":[` + u + `,{"role":"system","content":[{"type":"text","text":"b1","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b\u00e9"}]},` + a + `]`,
			`{"role":"system","content":"b1\nb\u00e9"},` + u + `,` + a},
		{openai.RouteMessages, `"system":[{"type":"text","text":"x"},{"type":"text","text":"y"}],"messages":[{"role":"system","content":""},` + u + `,{"role":"system","content":[]}]`,
			`{"role":"system","content":"x\ny"},` + u},
		{openai.RouteMessages, `"messages":[{"role":"system","content":"alone"}]`, `{"role":"system","content":"alone"}`},
		{openai.RouteResponses, `"instructions":"top","input":[{"role":"developer","content":"dev"},` + u + `]`,
			`{"role":"system","content":"top\n\ndev"},` + u},
		{openai.RouteResponses, `"input":[{"role":"developer","content":"d1"},{"role":"developer","content":[{"type":"input_text","text":"d2"},{"type":"input_text","text":"d3"}]},` + u + `]`,
			`{"role":"system","content":"d1\n\nd2\nd3"},` + u},
		{openai.RouteResponses, `"instructions":"top","input":[` + u + `,{"role":"developer","content":"dev"},{"type":"message","role":"system","content":"sys"},` + u + `]`,
			`{"role":"system","content":"top\n\ndev\n\nsys"},{"role":"user","content":"u\n\nu"}`},
		{openai.RouteResponses, `"input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"role":"developer","content":"dev"},{"type":"function_call","call_id":"2","name":"f","arguments":"{}"}]`,
			`{"role":"system","content":"dev"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"f","arguments":"{}"}}]}`},
		{openai.RouteResponses, `"instructions":"top","input":[` + u + `,{"role":"developer","content":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"u"},{"type":"input_text","text":"it"}]}]`,
			`{"role":"system","content":[{"type":"text","text":"top\n\nsee"},{"type":"image_url","image_url":{"url":"u"}},{"type":"text","text":"it"}]},` + u},
		{openai.RouteResponses, `"instructions":"","input":"q"`, `{"role":"user","content":"q"}`},
	} {
		body, tail := `{"model":"m",`+c.body+`}`, `]}`
		if c.route == openai.RouteMessages {
			body, tail = `{"model":"m","max_tokens":5,`+c.body+`}`, `],"max_tokens":5}`
		}
		chat, _ := translated(t, c.route, body)
		if want := `{"model":"m","messages":[` + c.want + tail; chat != want {
			t.Errorf("%s:\ngot  %s\nwant %s", body, chat, want)
		}
	}
}

// Turns from another server have calls and results of its tools: one such block must not
// make each further request of a session a 400.
func TestPartsOfServerToolsAreLeftOut(t *testing.T) {
	for _, c := range []struct {
		route          openai.Route
		in, want, note string
	}{
		{openai.RouteMessages, `{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"server_tool_use","id":"s","name":"web_search","input":{}},{"type":"web_search_tool_result","tool_use_id":"s","content":[]},{"type":"server_tool_use","id":"t","name":"web_search","input":{}},{"type":"text","text":"a"}]},{"role":"user","content":[{"type":"x\n_tool_result"}]}`,
			`{"role":"user","content":"q"},{"role":"assistant","content":"a"}`, "server_tool_use, web_search_tool_result, x?_tool_result"},
		{openai.RouteResponses, `{"role":"user","content":"q"},{"type":"web_search_call","id":"w","status":"completed"},{"role":"assistant","content":"a"},{"type":"local_shell_call","call_id":"c","action":{}},{"type":"local_shell_call_output","id":"c","output":"x"}`,
			`{"role":"user","content":"q"},{"role":"assistant","content":"a"}`, "web_search_call, local_shell_call, local_shell_call_output"},
		{openai.RouteResponses, `{"type":"custom_tool_call","call_id":"1","name":"p","input":"say \"hi\""},{"type":"custom_tool_call_output","call_id":"1","output":"ok"}`,
			`{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"p","arguments":"{\"input\":\"say \\\"hi\\\"\"}"}}]},{"role":"tool","tool_call_id":"1","content":"ok"}`, ""},
	} {
		body, tail := `{"model":"m","input":[`+c.in+`]}`, `]}`
		if c.route == openai.RouteMessages {
			body, tail = messagesHead+`[`+c.in+`]}`, `],"max_tokens":5}`
		}
		chat, x := translated(t, c.route, body)
		if want := `{"model":"m","messages":[` + c.want + tail; chat != want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.in, chat, want)
		}
		note := ""
		if c.note != "" {
			note = "parts of turns left out: " + c.note
		}
		if x.Note() != note {
			t.Errorf("%s: note %q, want %q", c.in, x.Note(), note)
		}
		if _, _, err := translate(c.route, body, Options{RefuseTools: true}); (err == nil) != (note == "") {
			t.Errorf("%s: with the option: %v", c.in, err)
		}
	}
}

func TestAllowedToolsShortenTheList(t *testing.T) {
	for _, c := range []struct{ mode, names, want string }{
		{"auto", `{"type":"function","name":"\u0067"},{"type":"mcp","server_label":"x"}`, `"tools":[{"type":"function","function":{"name":"g"}}],"tool_choice":"auto"}`},
		{"required", `{"type":"function","name":"f"},{"type":"function","name":"g"}`, `"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],"tool_choice":"required"}`},
		{"auto", `{"type":"web_search"}`, `"messages":[{"role":"user","content":"q"}]}`},
	} {
		chat, _ := translated(t, openai.RouteResponses, `{"model":"m","input":"q","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"},{"type":"mcp","server_label":"x"}],"tool_choice":{"type":"allowed_tools","mode":"`+c.mode+`","tools":[`+c.names+`]}}`)
		if !strings.HasSuffix(chat, c.want) {
			t.Errorf("%s of %s: %s", c.mode, c.names, chat)
		}
	}
}
