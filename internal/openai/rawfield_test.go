package openai

import "testing"

func TestRawField(t *testing.T) {
	f := func(json, field, want string, ok bool) {
		t.Helper()
		raw, got := RawField([]byte(json), field)
		if got != ok || string(raw) != want {
			t.Errorf("%s of %s is %q, %t, want %q, %t", field, json, raw, got, want, ok)
		}
	}
	f(`{"a":1,"kv":{"x":[1, 2.50],"a":"}"},"b":null}`, "kv", `{"x":[1, 2.50],"a":"}"}`, true)
	f(` {"b": null }`, "b", "null", true)
	f(`{"kv":1,"\u006bv":2}`, "kv", "2", true)
	f(`{"a":{"kv":1}}`, "kv", "", false)
	f(`{}`, "kv", "", false)
	f(`[]`, "kv", "", false)
	f(`{"kv":1`, "kv", "", false)
	f(``, "kv", "", false)
}
