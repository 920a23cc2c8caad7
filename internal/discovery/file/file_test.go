package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
	"github.com/sluice-router/sluice/internal/discovery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const interval = time.Second

// testbed is a source of a file, in virtual time.
type testbed struct {
	t    *testing.T
	path string

	mu sync.Mutex
	// guarded by mu
	readings []discovery.Reading
}

func inBubble(t *testing.T, f func(b *testbed)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := &testbed{t: t, path: filepath.Join(dir, "workers.yaml")}
		f(b)
	})
}

func (b *testbed) start() (stop func()) {
	s := New(configtest.New(func(c *config.Config) { c.Discovery.File, c.Discovery.CheckInterval = b.path, interval }))
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx, func(r discovery.Reading) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.readings = append(b.readings, r)
		})
	}()
	b.pass(settlePause * settleLooks / 2)
	return func() {
		cancel()
		<-done
	}
}

func (b *testbed) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *testbed) write(text string) {
	b.t.Helper()
	if err := os.WriteFile(b.path, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// last is the last reading, with the URLs in it.
func (b *testbed) last() (r discovery.Reading, urls string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.readings) == 0 {
		b.t.Fatal("nothing was reported")
	}
	r = b.readings[len(b.readings)-1]
	var list []string
	for _, w := range r.Workers {
		list = append(list, w.URL)
	}
	return r, strings.Join(list, " ")
}

func (b *testbed) want(urls string) discovery.Reading {
	b.t.Helper()
	r, got := b.last()
	if got != urls || r.Err != nil {
		b.t.Errorf("workers %q, error %v; want %q", got, r.Err, urls)
	}
	return r
}

func list(urls ...string) string {
	text := "workers:\n"
	for _, u := range urls {
		text += "- url: " + u + "\n"
	}
	return text
}

func TestFileIsFollowedByItsContents(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.write(list("http://a:1"))
		defer b.start()()
		b.want("http://a:1")

		// Written in place, with the time that it had.
		b.write(list("http://b:1"))
		if err := os.Chtimes(b.path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		b.pass(interval)
		b.want("http://b:1")

		// Replaced by another file.
		other := b.path + ".new"
		if err := os.WriteFile(other, []byte(list("http://c:1")), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(other, b.path); err != nil {
			t.Fatal(err)
		}
		b.pass(interval)
		b.want("http://c:1")
	})
}

// A ConfigMap is mounted as links: workers.yaml -> ..data/workers.yaml, ..data -> a
// directory that is replaced as a whole.
func TestConfigMapLinks(t *testing.T) {
	inBubble(t, func(b *testbed) {
		dir := filepath.Dir(b.path)
		mount := func(name string, urls ...string) {
			if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name, "workers.yaml"), []byte(list(urls...)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(name, filepath.Join(dir, "..tmp")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
				t.Fatal(err)
			}
		}
		mount("..1", "http://a:1")
		if err := os.Symlink("..data/workers.yaml", b.path); err != nil {
			t.Fatal(err)
		}
		defer b.start()()
		b.want("http://a:1")
		mount("..2", "http://b:1")
		b.pass(interval)
		b.want("http://b:1")
	})
}

func TestFileThatCannotBeRead(t *testing.T) {
	inBubble(t, func(b *testbed) {
		defer b.start()()
		failed := func(what string) {
			t.Helper()
			if r, _ := b.last(); r.Err == nil || !strings.Contains(r.Err.Error(), what) {
				t.Errorf("error %v, want %q", r.Err, what)
			}
		}
		failed("no such file")
		b.write(list("http://a:1"))
		b.pass(interval)
		b.want("http://a:1")
		b.write("workers: [")
		b.pass(interval)
		failed("as YAML")
		b.write("")
		b.pass(interval)
		failed("is empty")
		if err := os.Remove(b.path); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(b.path, 0o700); err != nil {
			t.Fatal(err)
		}
		b.pass(interval)
		failed("not a regular file")
		if err := os.Remove(b.path); err != nil {
			t.Fatal(err)
		}
		b.write(list("http://a:1"))
		b.pass(interval)
		b.want("http://a:1")
	})
}

// A file that is being written is not taken before it is complete.
func TestFileThatIsBeingWritten(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.write(list("http://a:1", "http://b:1"))
		defer b.start()()
		stop := make(chan struct{})
		written := make(chan struct{})
		go func() {
			defer close(written)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(settlePause / 2):
					b.write(list("http://a:1", fmt.Sprintf("http://n%d:1", i)))
				}
			}
		}()
		b.pass(4 * interval)
		if r, urls := b.last(); r.Err == nil {
			t.Errorf("contents %q were taken that kept changing", urls)
		}
		close(stop)
		<-written
		b.write(list("http://c:1"))
		b.pass(3 * interval)
		b.want("http://c:1")
	})
}

func TestWhatIsDeclared(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.write("version: 1\nworkers:\n- {id: one, url: 'a:1', labels: {zone: x}}\n- url: b:1\n- url: ftp://c\n")
		defer b.start()()
		r := b.want("http://a:1 http://b:1")
		one, two := r.Workers[0], r.Workers[1]
		if one.Identity != "one" || one.Origin != b.path+":3" || one.Labels["zone"] != "x" || one.Labels[labelProvider] != "file" || one.Labels[labelID] != "one" {
			t.Errorf("the first: %+v", one)
		}
		if two.Identity != "" || two.Labels[labelID] != "http://b:1" {
			t.Errorf("the second: %+v", two)
		}
		if len(r.LeftOut) != 1 || r.LeftOut[0] != "ftp://c" {
			t.Errorf("left out %q", r.LeftOut)
		}
		if len(r.Warnings) != 1 || !strings.HasPrefix(r.Warnings[0], b.path+":5: workers[2].url") {
			t.Errorf("warnings %q", r.Warnings)
		}
	})
}

func TestWarningsAreCounted(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.write(list(slices.Repeat([]string{"ftp://x"}, 3*discovery.MaxWarnings)...) + "- url: http://a:1\n")
		defer b.start()()
		r := b.want("http://a:1")
		if n := len(r.Warnings); n != discovery.MaxWarnings || !strings.Contains(r.Warnings[n-1], "41 more") {
			t.Errorf("%d warnings, the last: %s", n, r.Warnings[n-1])
		}
	})
}

// Each look is reported, for what must be read several times before it is believed.
func TestEachLookIsReported(t *testing.T) {
	inBubble(t, func(b *testbed) {
		b.write(list("http://a:1"))
		defer b.start()()
		b.pass(5 * interval)
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := len(b.readings); n != 6 {
			t.Errorf("%d readings after 5 intervals", n)
		}
	})
}

// The keys of workers are in files of their own, which change without the list.
func TestKeyFilesOfWorkersAreReadAgain(t *testing.T) {
	inBubble(t, func(b *testbed) {
		key := b.path + ".key"
		write := func(text string) {
			if err := os.WriteFile(key, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("one")
		b.write("- {url: 'http://a:1', api_key_file: '" + key + "'}\n")
		defer b.start()()
		if r := b.want("http://a:1"); r.Workers[0].APIKey.Reveal() != "one" {
			t.Error("the key is not there")
		}
		write("two")
		b.pass(interval)
		if r := b.want("http://a:1"); r.Workers[0].APIKey.Reveal() != "two" {
			t.Error("the key was not read again")
		}
	})
}
