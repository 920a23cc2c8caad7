package openai

import "testing"

func TestPeekAndSpliceOfAnOrdinaryChat(t *testing.T) {
	body := []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi \u00e9"}],"seed":9007199254740993}`)
	p, err := Peek(RouteChatCompletions, body, PeekOptions{Refuse: ControlledFields})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	if p.Model != "m" || !p.Stream || p.N != 1 || p.PromptBytes != 5 || p.Messages != 1 {
		t.Fatalf("got %+v", p.Model)
	}
	var s Splicer
	s.Reset(p)
	s.SetString(FieldBootstrapHost, "10.0.0.7")
	s.SetInt(FieldBootstrapPort, 8998)
	s.SetInt(FieldBootstrapRoom, 1<<62)
	got := string(s.AppendBytes(nil))
	want := `{"bootstrap_host":"10.0.0.7","bootstrap_port":8998,"bootstrap_room":4611686018427387904,` + string(body[1:])
	if got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	if segs, n := s.Segments(); len(segs) != 3 || n != len(want) {
		t.Fatalf("%d segments of %d bytes", len(segs), n)
	}
}
