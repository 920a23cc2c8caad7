package process

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// When Freeze returns, nothing of the process runs any more; after Thaw it goes on.
func TestFreeze(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	p, err := Start(t.TempDir(), "counter", []string{"PATH=" + os.Getenv("PATH")}, shell, "-c", "while :; do echo x; done")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	size := func() int64 {
		info, err := os.Stat(p.Log())
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	grows := func() {
		t.Helper()
		before := size()
		for end := time.Now().Add(time.Minute); size() == before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the process does nothing")
			}
		}
	}
	for range 5 {
		grows()
		if err := p.Freeze(); err != nil {
			t.Fatal(err)
		}
		before := size()
		for range 20 {
			time.Sleep(time.Millisecond) // for one that would go on
			if size() != before {
				t.Fatal("the process goes on")
			}
		}
		if err := p.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
	grows()
	p.Kill()
	if p.Running() || !strings.HasPrefix(p.LogTail(1), "x") {
		t.Errorf("after its end: %q", p.LogTail(1))
	}
}
