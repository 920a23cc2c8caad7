package openai

import "testing"

func TestLogTextOmitsValues(t *testing.T) {
	for _, c := range []struct {
		e    *Error
		want string
	}{
		{InvalidRequest("", "the request body is not valid JSON: %s", "SECRET"), "the request body is not valid JSON: …"},
		{InvalidRequest("n", "%s is %-5.1f%%; it must be at least 1", "n", 1.5), "… is …%; it must be at least 1 (param n)"},
		{InvalidRequest("my SECRET", "the field %q is there twice; send it once", "my SECRET"), "the field … is there twice; send it once"},
		{InvalidRequest("messages[0].content", "%s", "SECRET"), "(param messages[0].content)"},
		{InvalidRequest("", "%s", "SECRET"), ""},
		{ModelNotFound(`a "SECRET\`), "the model … is not served here; GET /v1/models lists those that are (param model)"},
		{RouteNotFound(`"SECRET`), "no worker here serves the path …"},
		{&Error{Message: `cut "SECRET`}, "cut …"},
		{&Error{Code: "engine_error", Message: "SECRET"}, ""},
		{RequestTooLarge(5), "the request body is larger than 5 bytes (--max-payload-size); send a smaller one or ask for a higher limit"},
	} {
		if got := c.e.LogText(); got != c.want {
			t.Errorf("%s: %q, want %q", c.e.Message, got, c.want)
		}
	}
}
