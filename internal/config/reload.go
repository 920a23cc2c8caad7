package config

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"
)

// DefaultReloadInterval is how often the files are looked at. A change is taken
// when two looks in a row find the same contents, so that a file is not read
// while it is being written.
const DefaultReloadInterval = 2 * time.Second

// Change is one new configuration.
type Change struct {
	Old, New *Config
	// Changed are the paths of the settings that differ, "classes" for the policy
	// classes, wherever they stand.
	Changed []string
	// Restart are the settings that differ too and keep their old values in New.
	Restart []Warning
}

// Any reports whether anything in force changes.
func (c Change) Any() bool { return len(c.Changed) > 0 }

// ReloadOptions of a [Reloader].
type ReloadOptions struct {
	// Apply puts c.New in force, whole or, with an error, not at all. One call at a
	// time; it must not call Reload. It is not called for a change of nothing.
	Apply func(Change) error
	// Done is told what became of each reload after Apply: nil, or why nothing has
	// changed. Like Apply, it must not call Reload. It may be nil itself.
	Done func(error)
	// ReadFile is nil for reading regular files only: a pipe has nothing to say
	// the second time.
	ReadFile ReadFile
	// Interval between two looks at the files. Zero: DefaultReloadInterval;
	// negative: none.
	Interval time.Duration
	// Now is nil for time.Now.
	Now func() time.Time
	// Log takes what became of each reload. Nil: none.
	Log *slog.Logger
}

// ReloadStatus is what became of the reloads so far.
type ReloadStatus struct {
	// Generation counts the configurations in force: 1 is that of the start.
	Generation int
	// Loaded is when the one in force was loaded.
	Loaded time.Time
	// Tried is when the last reload was, with its trigger: "file", "signal" or
	// "request". The zero time: there was none.
	Tried   time.Time
	Trigger string
	// Succeeded and Failed count the reloads; one that found nothing new succeeded.
	// LastGood is when the last one succeeded, or the start.
	Succeeded, Failed uint64
	LastGood          time.Time
	// Hash is the beginning of the SHA-256 over the contents of all files of the
	// configuration in force but those of keys, in hexadecimal, empty without files; it reports whether two routers have read
	// the same.
	Hash string
	// Err is why the last reload changed nothing; the last good configuration
	// stays in force. Nil: it is what the files say.
	Err error
	// Warnings are those of the last good configuration, and the settings that
	// differ in the files and need a restart.
	Warnings []Warning
}

// Reloader loads the configuration again and puts what may change without a
// restart in force: classes, limits, thresholds and workers (the settings tagged reload).
// It starts no goroutine.
type Reloader struct {
	// immutable
	flags   *Flags
	environ []string
	opts    ReloadOptions
	start   *Config

	// reloading makes one reload at a time, and is held across reading files
	// and Apply. It is taken before mu.
	reloading sync.Mutex
	// guarded by reloading
	taken   [sha256.Size]byte  // of the contents that the last reload read
	changed *[sha256.Size]byte // of other contents that the last look found

	mu sync.Mutex
	// guarded by mu, written with reloading held
	current *Config
	status  ReloadStatus
}

// NewReloader makes a Reloader of the configuration in force, which
// [LoadFlags] made of flags and environ, with its warnings.
func NewReloader(flags *Flags, environ []string, cfg *Config, warnings []Warning, o ReloadOptions) *Reloader {
	if o.ReadFile == nil {
		o.ReadFile = readRegular
	}
	if o.Interval == 0 {
		o.Interval = DefaultReloadInterval
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &Reloader{flags: flags, environ: environ, opts: o, start: cfg, current: cfg}
	r.taken = r.fingerprint(cfg)
	now := o.Now()
	r.status = ReloadStatus{Generation: 1, Loaded: now, LastGood: now, Warnings: warnings, Hash: r.hash(cfg)}
	return r
}

// Current returns the configuration in force.
func (r *Reloader) Current() *Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// Status returns what became of the reloads so far.
func (r *Reloader) Status() ReloadStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// Run reloads on each value of hangup (SIGHUP) and when the files have changed,
// until ctx ends. It is to be run once.
func (r *Reloader) Run(ctx context.Context, hangup <-chan os.Signal) {
	var ticks <-chan time.Time
	if r.opts.Interval > 0 && r.watches() {
		ticker := time.NewTicker(r.opts.Interval)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			_, _ = r.reload("signal") // logged and shown
		case <-ticks:
			r.look()
		}
	}
}

// Reload loads the configuration now and puts it in force. The error is an
// [Errors], or that of Apply; the last good configuration then stays.
func (r *Reloader) Reload() (Change, error) { return r.reload("request") }

// watches reports whether there is a file that can change.
func (r *Reloader) watches() bool {
	a := &r.start.Auth
	return r.start.File != "" || r.start.Admission.RouterPolicyConfig != "" || a.APIKeyFile != "" || a.AdminAPIKeyFile != ""
}

// look reloads when the files have changed and stopped changing.
func (r *Reloader) look() {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	sum := r.fingerprint(r.Current())
	switch {
	case sum == r.taken:
		r.changed = nil
	case r.changed != nil && *r.changed == sum:
		_, _ = r.reloadLocked("file") // logged and shown
	default:
		r.changed = &sum
	}
}

// fingerprint is of what the files hold now, or of why they cannot be read.
func (r *Reloader) fingerprint(cfg *Config) [sha256.Size]byte { return r.digest(watched(cfg)...) }

// watched are the files whose changes cause a reload, "" for one that is not used.
func watched(cfg *Config) []string {
	names := []string{cfg.File, cfg.Admission.RouterPolicyConfig, cfg.Auth.APIKeyFile, cfg.Auth.AdminAPIKeyFile}
	for _, w := range cfg.Workers {
		if len(names) < maxWatched && w.APIKeyFile != "" && !slices.Contains(names, w.APIKeyFile) {
			names = append(names, w.APIKeyFile)
		}
	}
	return names
}

// maxWatched bounds how many files are looked at: workers with a key file each have a
// file each.
const maxWatched = 100

// hash identifies the configuration to operators. It is of the files without the keys
// in them, so that it does not help to guess a key.
func (r *Reloader) hash(cfg *Config) string {
	if cfg.File == "" && cfg.Admission.RouterPolicyConfig == "" {
		return ""
	}
	sum := r.digest(cfg.File, cfg.Admission.RouterPolicyConfig)
	return hex.EncodeToString(sum[:6])
}

func (r *Reloader) digest(names ...string) [sha256.Size]byte {
	h := sha256.New()
	for _, name := range names {
		if name == "" {
			continue
		}
		data, err := r.opts.ReadFile(name)
		if err != nil {
			data = []byte("cannot read: " + err.Error())
		}
		sum := sha256.Sum256(data)
		h.Write(sum[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func (r *Reloader) reload(trigger string) (Change, error) {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	return r.reloadLocked(trigger)
}

func (r *Reloader) reloadLocked(trigger string) (Change, error) {
	// Taken before the files are read: a change in between is seen again.
	r.taken, r.changed = r.fingerprint(r.current), nil
	change, warnings, err := r.load()
	if err == nil && change.Any() {
		if e := r.opts.Apply(change); e != nil {
			err = fmt.Errorf("cannot put the configuration in force: %w", e)
		}
	}
	status := r.status
	status.Tried, status.Trigger, status.Err = r.opts.Now(), trigger, err
	if err != nil {
		status.Failed++
	} else {
		status.Succeeded++
		status.LastGood, status.Hash = status.Tried, r.hash(change.New)
		status.Warnings = slices.Concat(warnings, change.Restart)
		if change.Any() {
			status.Generation++
			status.Loaded = status.Tried
		}
	}
	r.mu.Lock()
	r.status = status
	if err == nil {
		r.current = change.New
	}
	r.mu.Unlock()
	if r.opts.Done != nil {
		r.opts.Done(err)
	}
	if err != nil {
		r.logErrors(trigger, err)
		return Change{Old: r.current, New: r.current}, err
	}
	if !slices.Equal(watched(change.Old), watched(change.New)) {
		r.taken = r.fingerprint(r.current) // another file
	}
	for _, w := range change.Restart {
		r.opts.Log.Warn("reload", "trigger", trigger, "warning", w.String())
	}
	r.opts.Log.Info("reload", "trigger", trigger, "changed", change.Changed, "generation", status.Generation)
	return change, nil
}

func (r *Reloader) logErrors(trigger string, err error) {
	var es Errors
	if !errors.As(err, &es) {
		r.opts.Log.Error("reload failed; the last good configuration stays", "trigger", trigger, "error", err.Error())
		return
	}
	for _, e := range es {
		r.opts.Log.Error("reload failed; the last good configuration stays", "trigger", trigger, "error", e.Error())
	}
}

// load makes the next configuration: the one at the start with what may change
// taken from what the files say now.
func (r *Reloader) load() (Change, []Warning, error) {
	loaded, warnings, err := LoadFlags(r.flags, r.environ, r.opts.ReadFile)
	if err != nil {
		return Change{}, warnings, err
	}
	change := Change{Old: r.current}
	next := *r.start
	next.origins = maps.Clone(r.start.origins)
	next.Classes, next.classes = loaded.Classes, loaded.classes
	next.KeyNames = loaded.KeyNames
	// Whether clients need a key is fixed at start: a mistake in a file must not open the
	// router, and without keys of its own it passes the clients' keys on to the engines.
	asked := map[string]bool{}
	for _, path := range []string{"auth.api_key", "auth.admin_api_key"} {
		o := schema().find(path)
		was, is := reflect.ValueOf(r.current).Elem().FieldByIndex(o.index), reflect.ValueOf(loaded).Elem().FieldByIndex(o.index)
		if asked[path] = was.IsZero() != is.IsZero(); asked[path] {
			change.Restart = append(change.Restart, Warning{Path: path, Source: loaded.place(o), Message: "whether there is a key at all has changed; a restart is needed for that"})
			asked[path+"_file"] = true
			if path == "auth.api_key" {
				next.KeyNames = r.current.KeyNames
			}
		}
	}
	l := &loader{cfg: &next, root: reflect.ValueOf(&next).Elem(), readFile: r.opts.ReadFile, bad: map[string]bool{}}
	to, from, old := l.root, reflect.ValueOf(loaded).Elem(), reflect.ValueOf(r.current).Elem()
	l.fitWorkers(loaded)
	schema().walk(func(o *option) {
		was, is := old.FieldByIndex(o.index), from.FieldByIndex(o.index)
		differs := !reflect.DeepEqual(was.Interface(), is.Interface())
		if asked[o.path] {
			to.FieldByIndex(o.index).Set(was)
			return
		}
		if !o.reload {
			if differs {
				change.Restart = append(change.Restart, Warning{Path: o.path, Source: loaded.place(o), Message: "has changed; a restart is needed for that"})
			}
			return
		}
		to.FieldByIndex(o.index).Set(is)
		if at, ok := loaded.origins[o.path]; ok {
			next.origins[o.path] = at
		} else {
			delete(next.origins, o.path)
		}
		if differs {
			change.Changed = append(change.Changed, o.path)
		}
	})
	if !reflect.DeepEqual(r.current.Classes, next.Classes) {
		change.Changed = append(change.Changed, "classes")
	}
	if !slices.Equal(r.current.KeyNames, next.KeyNames) {
		change.Changed = append(change.Changed, "auth.api_key_file: names")
	}
	change.New = &next
	// What stays may not go with what is new.
	l.checkAdmission()
	l.checkWaiting()
	l.checkConditional()
	if len(l.errs) > 0 {
		for _, e := range l.errs {
			e.Message += " (settings that need a restart are as they were at the start)"
		}
		return Change{}, warnings, l.errs
	}
	return change, warnings, nil
}

// fitWorkers makes the workers that were loaded those of a router whose mode and model
// name are the ones at the start.
func (l *loader) fitWorkers(loaded *Config) {
	was, is := l.cfg.Fleet.ModelID, loaded.Fleet.ModelID
	for i := range loaded.Workers {
		w := &loaded.Workers[i]
		if w.ModelID == is && was != is {
			w.ModelID = was // it has none of its own
		}
		if l.cfg.Fleet.PDDisaggregation == (w.Type == WorkerRegular) {
			l.fail(fmt.Sprintf("workers[%d].worker_type", i), loaded.origins["workers"].String(), string(w.Type), "does not go with fleet.pd_disaggregation: %t", l.cfg.Fleet.PDDisaggregation)
		}
	}
}

// place says where a setting comes from; that of a key that was read from a file is
// where the file was named.
func (c *Config) place(o *option) string {
	if _, ok := c.origins[o.path]; !ok && o.secret() {
		if from, ok := c.origins[o.path+"_file"]; ok {
			return from.String()
		}
	}
	return c.Origin(o.path).String()
}

// readRegular refuses what cannot be read twice.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file, so it cannot be read again", path)
	}
	return readBounded(path)
}
