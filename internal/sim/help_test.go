package sim

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The help must name the keys that exist, and all of them.
func TestFaultHelpNamesEveryKey(t *testing.T) {
	named := map[string]bool{}
	for _, k := range regexp.MustCompile(`[a-z_]+(=|,| \(|  )`).FindAllString(FaultHelp, -1) {
		named[strings.TrimRight(k, "=, (")] = true
	}
	for _, k := range []string{
		"on", "path", "skip", "count", "accept_delay", "delay", "first_byte", "event_delay", "early_headers", "keep_alive", "comment", "status", "do", "at",
		"body", "body_size", "early", "header", "retry_after", "content_type", "reset", "close", "end", "freeze", "write_size", "write_pause", "kind",
		"echo", "token", "output_tokens", "token_size", "event", "after",
	} {
		if !named[k] {
			t.Errorf("the help does not name %s", k)
		}
		var f Fault
		if err := f.set(k, "1"); err != nil && strings.Contains(err.Error(), "no such key") {
			t.Errorf("%s: %v", k, err)
		}
	}
	for _, k := range []Kind{Garbage, Truncated, ChunkLine, HugeHeader, ErrorInside200, ErrorEvent, EventsForJSON, JSONForEvents, EOFDelimited, Surplus, Informational} {
		if !strings.Contains(FaultHelp, string(k)) {
			t.Errorf("the help does not name kind=%s", k)
		}
	}
}

// What the help names must be parsed as it is written, with values for the words in
// capitals.
func TestFaultHelpIsWhatIsParsed(t *testing.T) {
	values := strings.NewReplacer("prefill|decode|regular", "decode", "=POINT", "=event", "=N", "=1", "=D", "=1ms", "=TEXT", "=x", "=KIND", "=eof",
		"=TYPE", "=text/plain")
	n := 0
	for _, example := range regexp.MustCompile(`[a-z_]+=[A-Za-z0-9|/:_.-]+(,at=[A-Z]+)?`).FindAllString(FaultHelp, -1) {
		n++
		if _, err := ParseFault(values.Replace(strings.TrimRight(example, ".,"))); err != nil {
			t.Errorf("%s: %v", example, err)
		}
	}
	if n < 20 {
		t.Errorf("only %d examples were found", n)
	}
	for _, p := range []Point{AtAccept, AtRequest, AtBody, AtHeaders, AtEvent, AtInside, AtEnd} {
		if !regexp.MustCompile(`\b` + string(p) + `\b`).MatchString(FaultHelp) {
			t.Errorf("the help does not name the point %s", p)
		}
	}
	long, err := ParseFault("do=reset,at=event,after=5")
	short, err2 := ParseFault("reset=event,after=5")
	if long.text, short.text = "", ""; err != nil || err2 != nil || long.Do != short.Do || long.At != short.At || long.After != short.After {
		t.Errorf("the two forms differ: %+v, %v; %+v, %v", long, err, short, err2)
	}
}

// Every fault in the documentation must be one that the simulator accepts.
func TestFaultsInTheDocumentationAreAccepted(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	examples := regexp.MustCompile(`/fault\s+-d '([^']+)'|"sim":"([^"]+)"|\bfault [a-z]+-[0-9]+ '([^']+)'|` + "`((?:do|reset|close|end|freeze|status|delay|path)=[^`]*)`")
	n := 0
	for _, file := range append(files, "../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range examples.FindAllStringSubmatch(string(text), -1) {
			n++
			fault := strings.ReplaceAll(m[1]+m[2]+m[3]+m[4], "POINT", "event")
			if _, err := ParseFault(fault); err != nil {
				t.Errorf("%s: %s: %v", file, fault, err)
			}
		}
	}
	if n < 8 {
		t.Errorf("only %d examples were found", n)
	}
}

// Every lie in the documentation must be one that the simulator accepts.
func TestLiesInTheDocumentationAreAccepted(t *testing.T) {
	text, err := os.ReadFile("../../docs/simulator.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile(`/kv-lie -d '([^']+)'`).FindAllStringSubmatch(string(text), -1)
	for _, m := range examples {
		if _, err := ParseKVLie(m[1]); err != nil {
			t.Error(err)
		}
	}
	if len(examples) < 2 {
		t.Errorf("only %d examples were found", len(examples))
	}
}
