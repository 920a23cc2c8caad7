package config

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestNamedKeys(t *testing.T) {
	long := strings.Repeat("n", 64)
	for line, want := range map[string][2]string{
		"key":              {"", "key"},
		"team-a:key":       {"team-a", "key"},
		"a.b_c-1: key":     {"a.b_c-1", "key"},
		"team:ke:y":        {"team", "ke:y"},
		":ke:y":            {"", "ke:y"},
		"no name:key":      {"", "no name:key"},
		long + ":key":      {long, "key"},
		long + "n:key":     {"", long + "n:key"},
		"ümlaut:key":       {"", "ümlaut:key"},
		"http://a.b/c:key": {"http", "//a.b/c:key"},
	} {
		name, key, err := namedKey(line)
		if err != nil || name != want[0] || key != want[1] {
			t.Errorf("%q is %q, %q, %v; want %q", line, name, key, err, want)
		}
	}
	for _, line := range []string{"team:", ":", "team: "} {
		if _, _, err := namedKey(line); err == nil {
			t.Errorf("%q is taken", line)
		}
	}
}

// TestReloadOfKeys guards against a restart for each change of a key, and a slip in the
// file that leaves no key, or an open router.
func TestReloadOfKeys(t *testing.T) {
	s := newStory(t, "--api-key-file keys", files{"keys": "a:one\ntwo\n"})
	check := func(changes int, names string, keys ...Secret) {
		t.Helper()
		c := s.Current()
		if len(s.applied) != changes || strings.Join(c.KeyNames, ",") != names || !slices.Equal(c.Auth.APIKeys, keys) {
			t.Errorf("%d changes, names %q, %d keys; want %d, %q, %d", len(s.applied), c.KeyNames, len(c.Auth.APIKeys), changes, names, len(keys))
		}
	}
	check(0, "a,", "one", "two")
	hash := s.Status().Hash
	for i, text := range []string{"a:three\n", "b:three\n"} {
		s.write("keys", text)
		if c, err := s.Reload(); err != nil || c.Changed[0] != "auth.api_key" && c.Changed[0] != "auth.api_key_file: names" {
			t.Fatalf("%+v, %v", c, err)
		}
		check(i+1, text[:1], "three")
	}
	for _, bad := range []string{"", "\n", "b:\n"} {
		s.write("keys", bad)
		_, err := s.Reload()
		if err == nil {
			t.Errorf("%q is taken", bad)
		} else if strings.Contains(err.Error(), "three") {
			t.Errorf("the error has a key in it: %v", err)
		}
		check(2, "b", "three")
	}
	s.write("keys")
	if _, err := s.Reload(); err == nil {
		t.Error("a file that is gone is taken")
	}
	check(2, "b", "three")
	if st := s.Status(); st.Failed != 4 || st.Succeeded != 2 || st.Generation != 3 || st.Hash != hash {
		t.Errorf("%+v", st)
	}
}

// TestReloadNeverOpensTheRouter: keys that are taken away whole stay.
func TestReloadNeverOpensTheRouter(t *testing.T) {
	s := newStory(t, "--config f", files{"f": "auth: {api_key: [one]}\n"})
	s.write("f", "log: {log_level: debug}\n")
	c, err := s.Reload()
	if err != nil || c.Any() || len(s.Current().Auth.APIKeys) != 1 {
		t.Errorf("%+v, %v: %d keys", c, err, len(s.Current().Auth.APIKeys))
	}
	if !slices.ContainsFunc(c.Restart, func(w Warning) bool { return w.Path == "auth.api_key" }) {
		t.Errorf("nothing is said of it: %v", c.Restart)
	}
}

// TestPlaceOfAChangedKey: the file was named by a flag, and not by default.
func TestPlaceOfAChangedKey(t *testing.T) {
	s := newStory(t, "--worker-api-key-file k --config f", files{"k": "one\n", "f": "log: {}\n"})
	s.write("k", "two\n")
	c, err := s.Reload()
	if err != nil || len(c.Restart) != 1 || !strings.Contains(c.Restart[0].String(), "--worker-api-key-file") {
		t.Errorf("%v, %v", c.Restart, err)
	}
}

// All wrong lines of a file of keys are told at once, by their number in the file and
// without what stands in them.
func TestAllWrongKeysAreTold(t *testing.T) {
	load := func(text string) (list []string, warnings []Warning) {
		_, warnings, err := Load(words("--api-key-file keys"), nil, files{"keys": text}.read)
		var es Errors
		if errors.As(err, &es) {
			for _, e := range es {
				list = append(list, e.Message)
			}
		}
		return list, warnings
	}
	got, _ := load("good\n\nteam:\nse cret\na:se cret\n:\n")
	if len(got) != 4 {
		t.Fatalf("%q", got)
	}
	for i, want := range []string{"line 3 ", "line 4 ", "line 5 ", "line 6 "} {
		if !strings.HasPrefix(got[i], want) || strings.Contains(got[i], "cret") || strings.Contains(got[i], "team") {
			t.Errorf("%q, want %q and no secret", got[i], want)
		}
	}
	got, _ = load(strings.Repeat("a:\n", 500))
	if len(got) != maxLineFaults+1 || got[maxLineFaults] != "has 480 more lines that are wrong" {
		t.Errorf("%d: %q", len(got), got[len(got)-1])
	}
}

// A key with a colon whose beginning could be a name is read as NAME:KEY, which
// leaves its owner outside and shows a part of it in logs.
func TestNamesThatLookLikeKeysAreWarnedOf(t *testing.T) {
	for line, prefix := range map[string]string{
		"sk-abc:def": `"sk-"`, "SK_live:x": `"SK_"`, "hf_abc:x": `"hf_"`, ":sk-abc:def": "", "team-sk-a:x": "", "sk-abc": "", "keys:x": "",
	} {
		c, warnings, err := Load(words("--api-key-file keys"), nil, files{"keys": "\n" + line + "\n"}.read)
		if err != nil {
			t.Errorf("%q: %v", line, err)
			continue
		}
		text := ""
		for _, w := range warnings {
			if w.Path == "auth.api_key_file" {
				text = w.Message
			}
		}
		if (text != "") != (prefix != "") || !strings.Contains(text, prefix) || strings.Contains(text, "abc") || strings.Contains(text, "def") {
			t.Errorf("%q: warned %q, want %s", line, text, prefix)
		}
		if len(c.Auth.APIKeys) != 1 {
			t.Errorf("%q: %d keys", line, len(c.Auth.APIKeys))
		}
	}
}

func TestAllWrongItemsOfAListAreTold(t *testing.T) {
	_, _, err := Load(words("--config f"), nil, files{"f": "auth: {api_key: [good, se cret, {a: b}, also bad]}\n"}.read)
	if err == nil {
		t.Fatal("taken")
	}
	if n := strings.Count(err.Error(), "\n") + 1; n != 3 || strings.Contains(err.Error(), "cret") {
		t.Errorf("%d faults: %v", n, err)
	}
}
