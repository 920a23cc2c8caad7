package saved

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
	"github.com/sluice-router/sluice/internal/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeFleet has registrations that a test sets.
type fakeFleet struct {
	changed chan struct{}

	mu    sync.Mutex
	list  []fleet.Registration
	asked int
}

func (f *fakeFleet) Registrations() []fleet.Registration {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.list
}

func (f *fakeFleet) RegistrationsChanged() <-chan struct{} { return f.changed }

func (f *fakeFleet) AddRegistration(_ context.Context, r fleet.Registration) error {
	if strings.HasPrefix(r.URL, "ftp") {
		return errors.New("it must begin with http")
	}
	f.set(append(f.Registrations(), r)...)
	return nil
}

func (f *fakeFleet) set(list ...fleet.Registration) {
	f.mu.Lock()
	f.list = list
	f.mu.Unlock()
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func registration(url string, change ...func(*fleet.Registration)) fleet.Registration {
	r := fleet.Registration{Worker: config.Worker{URL: url, Type: config.WorkerRegular}}
	for _, c := range change {
		c(&r)
	}
	return r
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type testbed struct {
	*fakeFleet
	*File
	t   *testing.T
	log *lockedBuffer
}

func newTestbed(t *testing.T, path string, pd bool) *testbed {
	b := &testbed{t: t, fakeFleet: &fakeFleet{changed: make(chan struct{}, 1)}, log: new(lockedBuffer)}
	cfg := configtest.New(func(c *config.Config) { c.Discovery.WorkersState, c.Fleet.PDDisaggregation = path, pd })
	b.File = New(cfg, b.fakeFleet, slog.New(slog.NewTextHandler(b.log, nil)))
	return b
}

func (b *testbed) contents() string {
	b.t.Helper()
	data, err := os.ReadFile(b.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	return string(data)
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestRegistrationsSurviveARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.json")
	priority := 7
	want := []fleet.Registration{
		registration("http://a:1", func(r *fleet.Registration) {
			r.Type, r.APIKey, r.Labels, r.Drained, r.Priority = config.WorkerPrefill, "secret", map[string]string{"zone": "x"}, true, &priority
			r.BootstrapPort, r.DPSize, r.Adapters, r.ModelID = config.BootstrapNone, 4, []string{"l"}, "m"
		}),
		registration("http://b:1", func(r *fleet.Registration) { r.Type, r.BootstrapPort = config.WorkerPrefill, 8998 }),
		registration("http://c:1", func(r *fleet.Registration) { r.Type = config.WorkerDecode }),
	}
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(t, path, true)
		b.Restore(t.Context()) // there is no file
		b.Start()
		b.set(want...)
		b.Close()
	})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info, err)
	}
	b := newTestbed(t, path, true)
	b.Restore(t.Context())
	if !reflect.DeepEqual(b.list, want) {
		t.Errorf("restored\n%+v\nwant\n%+v", b.list, want)
	}
	if list, err := filepath.Glob(path + "*"); err != nil || len(list) != 1 {
		t.Errorf("files %q, %v", list, err)
	}
	if strings.Contains(b.log.String(), "secret") {
		t.Error("the key is in the log")
	}
}

// Many changes are at most one write a second, and the last one is written at the end.
func TestWritesArePaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.json")
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(t, path, false)
		b.Start()
		for i := range 100 {
			b.set(registration(fmt.Sprintf("http://w%d:1", i)))
			pass(50 * time.Millisecond)
		}
		b.mu.Lock()
		asked := b.asked
		b.mu.Unlock()
		if asked > 7 {
			t.Errorf("%d writes in 5 s", asked)
		}
		b.set(registration("http://last:1"))
		b.Close()
		if !strings.Contains(b.contents(), "http://last:1") {
			t.Error("the last change was not written")
		}
	})
}

func TestFileThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty": "", "cut": `{"version": 1, "workers": [{"url": "http://a:1"`, "version": `{"version": 2, "workers": []}`, "kind": `{"version": 1, "workers": "x"}`,
		"large": strings.Repeat(" ", maxBytes+1),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			b := newTestbed(t, path, false)
			b.Restore(t.Context())
			aside, err := os.ReadFile(path + ".bad")
			if err != nil || string(aside) != text || b.contents() != "" || !strings.Contains(b.log.String(), "put aside") {
				t.Errorf("aside %.40q, %v, log %s", aside, err, b.log)
			}
		})
	}
	t.Run("directory", func(t *testing.T) {
		path := filepath.Join(dir, "directory")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		b := newTestbed(t, path, false)
		b.Restore(t.Context())
		if !strings.Contains(b.log.String(), "not a regular file") {
			t.Errorf("log %s", b.log)
		}
		// It may be a device too: it is neither moved nor replaced.
		b.set(registration("http://a:1"))
		b.Start()
		b.Close()
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			t.Errorf("the directory is gone: %v, %v", info, err)
		}
	})
}

// What is wrong with one registration does not lose the others, and the file is kept.
func TestOneWrongRegistration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.json")
	text := `{"version": 1, "workers": [{"url": "http://a:1"}, {"url": "ftp://b"}, {"url": 7}, {"url": "http://p:1", "worker_type": "prefill"}, {"url": "http://c:1", "later": 1}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(t, path, false)
		b.Restore(t.Context())
		if len(b.list) != 2 || b.list[1].URL != "http://c:1" || !strings.Contains(b.log.String(), "3 of its 5 workers") {
			t.Errorf("restored %+v, log %s", b.list, b.log)
		}
		if aside, err := os.ReadFile(path + ".bad"); err != nil || string(aside) != text {
			t.Errorf("aside %q, %v", aside, err)
		}
		b.Start()
		b.Close()
		var d document
		if err := json.Unmarshal([]byte(b.contents()), &d); err != nil || len(d.Workers) != 2 {
			t.Errorf("saved %s, %v", b.contents(), err)
		}
	})
}

// A write that fails is repeated until it works, and told once.
func TestWriteThatFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(t, filepath.Join(dir, "workers.json"), false)
		b.Start()
		b.set(registration("http://a:1"))
		pass(2 * retryPause)
		if n := strings.Count(b.log.String(), "cannot be written:"); n != 1 {
			t.Errorf("told %d times: %s", n, b.log)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		pass(retryPause)
		if !strings.Contains(b.contents(), "http://a:1") || !strings.Contains(b.log.String(), "can be written again") {
			t.Errorf("not written: %s", b.log)
		}
		b.Close()
	})
}

func TestLinkIsFollowed(t *testing.T) {
	dir := t.TempDir()
	target, path := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := os.WriteFile(target, []byte(`{"version": 1, "workers": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(t, path, false)
		b.Restore(t.Context())
		b.Start()
		b.set(registration("http://a:1"))
		b.Close()
	})
	if data, err := os.ReadFile(target); err != nil || !strings.Contains(string(data), "http://a:1") {
		t.Errorf("the target has %q, %v", data, err)
	}
}
