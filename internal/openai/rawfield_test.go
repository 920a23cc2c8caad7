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

func TestRawFields(t *testing.T) {
	f := func(json, a, b string, ok bool) {
		t.Helper()
		var raw [2][]byte
		got := RawFields([]byte(json), []string{"a", "b"}, raw[:])
		if got != ok || ok && (string(raw[0]) != a || string(raw[1]) != b) {
			t.Errorf("the fields of %s are %q, %t, want %q and %q, %t", json, raw, got, a, b, ok)
		}
	}
	f(`{"b":[1, 2],"c":{"a":1},"a":"x"}`, `"x"`, `[1, 2]`, true)
	f(` {"a":1,"\u0061" : 2 }`, "2", "", true) // the last counts
	f(`{}`, "", "", true)
	f(`{"a":1`, "", "", false)
	f(`{"a":1,}`, "", "", false)
	f(`["a"]`, "", "", false)
	f(``, "", "", false)
}
