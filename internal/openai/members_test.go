package openai

import (
	"strings"
	"testing"
)

func TestEachMemberYieldsKnownAndUnknownFields(t *testing.T) {
	f := func(route Route, body, want string) {
		t.Helper()
		p, err := Peek(route, []byte(body), PeekOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Release()
		var got strings.Builder
		for name, value := range p.EachMember() {
			got.WriteString(string(name) + "=" + string(value) + "|")
		}
		if got.String() != want {
			t.Errorf("%s has %s, want %s", body, got.String(), want)
		}
	}
	f(RouteChatCompletions, `{"model":"m", "messages" : [{"role":"user","content":"a\"]}"}] ,"x":{"a":[1]},"t\u0065mperature":0.5,"stop":null}`,
		`model="m"|messages=[{"role":"user","content":"a\"]}"}]|x={"a":[1]}|temperature=0.5|stop=null|`)
	f(RouteCompletions, ` {"x":1,"x": 2 } `, `x=1|x=2|`)
	f(RouteOther, `{}`, ``)
}

func TestObjectMembersAndElements(t *testing.T) {
	f := func(json, want string) {
		t.Helper()
		var got strings.Builder
		for name, value := range ObjectMembers([]byte(json)) {
			got.WriteString(string(name) + "=" + string(value) + "|")
		}
		for value := range Elements([]byte(json)) {
			got.WriteString(string(value) + "|")
		}
		if got.String() != want {
			t.Errorf("%s has %s, want %s", json, got.String(), want)
		}
	}
	f(`{"a":{"b":[1,2]},"c":null}`, `a={"b":[1,2]}|c=null|`)
	f(`[1, "a]" ,[{}] ]`, `1|"a]"|[{}]|`)
	f(`"a"`, ``)
	f(`7`, ``)
	f(``, ``)
}

func TestEachMemberStopsWhenAsked(t *testing.T) {
	n := 0
	for range ObjectMembers([]byte(`{"a":1,"b":2}`)) {
		n++
		break
	}
	for range Elements([]byte(`[1,2]`)) {
		n++
		break
	}
	if n != 2 {
		t.Errorf("%d rounds, want 2", n)
	}
}
