package chattemplate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

// conversations are the inputs of a file of testdata, as record.py renders them.
func conversations(t *testing.T, file string) []*Input {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
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
	in := conversations(t, "conversations.json")[0]
	for _, s := range readRecorded(t).Snippets {
		compare(t, s.Source, s.Source, in, s.outcome)
	}
}

// The templates are our own, in the manner of those of the well-known families.
func TestTemplatesRenderAsTheReference(t *testing.T) {
	inputs := conversations(t, "conversations.json")
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

// The templates of real models are not part of the project, and neither is what they render: of that the hashes are.
func TestTemplatesOfModelsRenderAsTheReference(t *testing.T) {
	dir := os.Getenv("SLUICE_TEST_TOKENIZERS")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Skip(err)
		}
		dir = filepath.Join(home, ".cache", "sluice", "tokenizers")
	}
	data, err := os.ReadFile(filepath.Join("testdata", "third-party.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]struct {
		Name    string
		Renders []string
	}
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	inputs := append(conversations(t, "conversations.json"), conversations(t, "conversations-more.json")...)
	for _, source := range templatesIn(t, dir) {
		hash := sha256.Sum256([]byte(source))
		known, ok := want[hex.EncodeToString(hash[:])]
		if !ok {
			continue
		}
		delete(want, hex.EncodeToString(hash[:]))
		tm, err := Parse(source, Options{})
		if err != nil {
			t.Errorf("%s: %v", known.Name, err)
			continue
		}
		for i, in := range inputs {
			got := ""
			text, err := tm.Render(context.Background(), in)
			if err == nil {
				hash := sha256.Sum256([]byte(text))
				got = hex.EncodeToString(hash[:])[:16]
			}
			if got != known.Renders[i] {
				t.Errorf("%s with conversation %d: %v, got %q", known.Name, i, err, text)
			}
		}
	}
	for _, missing := range want {
		t.Logf("left out: the template of %s is not in %s; see test/tokenizers", missing.Name, dir)
	}
}

// templatesIn are the chat templates that test/tokenizers/install.sh has put into a directory.
func templatesIn(t *testing.T, dir string) []string {
	t.Helper()
	var sources []string
	files, _ := filepath.Glob(filepath.Join(dir, "templates", "*.jinja"))
	for _, name := range files {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, string(source))
	}
	files, _ = filepath.Glob(filepath.Join(dir, "*", "tokenizer_config.json"))
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var config struct {
			Template json.RawMessage `json:"chat_template"`
		}
		var source string
		if json.Unmarshal(data, &config) == nil && json.Unmarshal(config.Template, &source) == nil {
			sources = append(sources, source)
		}
	}
	return sources
}
