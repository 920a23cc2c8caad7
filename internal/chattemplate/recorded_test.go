package chattemplate

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// recorded is what jinja2 made of the templates and the snippets of testdata; see testdata/record.py.
type recorded struct {
	Snippets []struct {
		Source string
		outcome
	}
	Templates map[string][]outcome
}

type outcome struct{ Text, Error string }

func readRecorded(t *testing.T) recorded {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r recorded
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// conversations are the inputs of testdata/conversations.json, as record.py renders them.
func conversations(t *testing.T) []*Input {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "conversations.json"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := ParseJSON(data, 100)
	if err != nil {
		t.Fatal(err)
	}
	var inputs []*Input
	for _, c := range v.(*List).items {
		inputs = append(inputs, inputOf(c.(*Dict)))
	}
	return inputs
}

func inputOf(variables *Dict) *Input {
	in := &Input{
		Kwargs: variables, AddGenerationPrompt: true, Now: time.Date(2026, 11, 30, 9, 5, 7, 0, time.UTC),
		Special: map[string]string{"bos_token": "<s>", "eos_token": "</s>"},
	}
	in.Messages, _ = variables.Get("messages")
	in.Tools, _ = variables.Get("tools")
	in.Documents, _ = variables.Get("documents")
	if v, ok := variables.Get("add_generation_prompt"); ok {
		in.AddGenerationPrompt = v == true
	}
	return in
}

func compare(t *testing.T, name, source string, in *Input, want outcome) {
	t.Helper()
	tm, err := Parse(source, Options{})
	var got string
	if err == nil {
		got, err = tm.Render(context.Background(), in)
	}
	switch {
	case err != nil && want.Error == "":
		t.Errorf("%s\nfails: %v\nwant %q", name, err, want.Text)
	case err == nil && want.Error != "":
		t.Errorf("%s\ngot %q\nwant the error %s", name, got, want.Error)
	case got != want.Text:
		t.Errorf("%s\ngot  %q\nwant %q", name, got, want.Text)
	}
}

// Each line of snippets.txt is one template of values, filters, tests, methods and statements, or an error of them.
func TestSnippetsRenderAsTheReference(t *testing.T) {
	in := conversations(t)[0]
	for _, s := range readRecorded(t).Snippets {
		compare(t, s.Source, s.Source, in, s.outcome)
	}
}

// The templates are our own, in the manner of those of the well-known families.
func TestTemplatesRenderAsTheReference(t *testing.T) {
	inputs := conversations(t)
	for name, want := range readRecorded(t).Templates {
		source, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		for i, in := range inputs {
			data, _ := json.Marshal(i)
			compare(t, name+" with conversation "+string(data), string(source), in, want[i])
		}
	}
}
