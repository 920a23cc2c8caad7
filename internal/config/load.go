package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

const (
	maxConfigBytes = 8 << 20
	maxSecretBytes = 64 << 10
	maxErrors      = 100
	maxWorkers     = 10_000

	maxSelectorWords = 100 // of one flag
)

// ReadFile reads a whole file, as os.ReadFile does.
type ReadFile func(path string) ([]byte, error)

// Load makes a configuration from the words of a command line (without the
// program and the command), the environment (as os.Environ gives it) and the
// file either of them names. readFile may be nil for os.ReadFile.
//
// The error is an [Errors] with everything that is wrong. Warnings are returned
// with and without an error.
func Load(args, environ []string, readFile ReadFile) (*Config, []Warning, error) {
	fs := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	flags := AddFlags(fs)
	words := ExpandArgs(args)
	if err := fs.Parse(words); err != nil {
		return nil, nil, Errors{{Source: "command line", Message: ExplainFlagError(err, fs, words).Error()}}
	}
	if fs.NArg() > 0 {
		return nil, nil, Errors{{Source: "command line", Value: fs.Arg(0), Message: "unexpected argument"}}
	}
	return LoadFlags(flags, environ, readFile)
}

// LoadFlags is [Load] after a parser has filled flags.
func LoadFlags(flags *Flags, environ []string, readFile ReadFile) (*Config, []Warning, error) {
	if readFile == nil {
		readFile = readBounded
	}
	l := &loader{cfg: &Config{origins: map[string]Origin{}}, readFile: readFile, bad: map[string]bool{}}
	l.root = reflect.ValueOf(l.cfg).Elem()
	schema().setDefaults(l.root)

	env := l.environment(environ)
	l.cfg.File = env[EnvPrefix+"CONFIG"]
	if flags.config.set() {
		l.cfg.File = flags.config.last()
	}
	if l.cfg.File != "" {
		before := len(l.errs)
		l.file(l.cfg.File)
		for _, e := range l.errs[before:] {
			l.unread = l.unread || e.Path == ""
		}
	}
	l.applyEnv(env)
	l.applyFlags(flags)
	l.warnForeign(flags)

	l.resolveSecretFiles()
	l.resolveClasses()
	l.validate()
	if len(l.errs) > 0 {
		l.errs.sort()
		return nil, l.warnings, l.errs
	}
	l.fillIn()
	return l.cfg, l.warnings, nil
}

// readBounded is os.ReadFile for regular files that are not absurdly big and
// for pipes (process substitution).
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
}

// loader lays the sources over one another and gathers what is wrong.
type loader struct {
	cfg      *Config
	root     reflect.Value // of *cfg
	readFile ReadFile

	errs     Errors
	warnings []Warning
	bad      map[string]bool // paths with an error; checks across settings skip them
	unread   bool            // the file, or a part of it, could not be read
	visited  int             // nodes of the file, aliases followed

	workers []Origin // of each of cfg.Workers
	// firstWorker is the place of the first of cfg.Workers in the list that it is from.
	firstWorker int
	inline      *classReader // the classes of the admission group; nil without a file
}

func (l *loader) fail(path, source, value, format string, args ...any) {
	l.bad[path] = true
	if len(l.errs) == maxErrors {
		l.errs = append(l.errs, &Error{Message: fmt.Sprintf("more than %d errors; the rest is not shown", maxErrors)})
	}
	if len(l.errs) > maxErrors {
		return
	}
	l.errs = append(l.errs, &Error{Path: path, Source: source, Value: redactWorker(value), Message: fmt.Sprintf(format, args...)})
}

func (l *loader) warn(path, source, format string, args ...any) {
	l.warnings = append(l.warnings, Warning{Path: path, Source: source, Message: fmt.Sprintf(format, args...)})
}

// set gives the setting o of the struct root the values of one source. prefix
// is the path of root. Each wrong value is reported and leaves the setting as it was.
func (l *loader) set(root reflect.Value, prefix string, o *option, from Origin, texts ...string) {
	path := prefix + o.path
	v := reflect.New(o.typ).Elem()
	wrong := false
	for i, text := range texts {
		err := o.setText(v, text)
		if err == nil {
			continue
		}
		wrong = true
		if o.secret() && text != "" {
			text = hidden
		}
		at := path
		if len(texts) > 1 {
			at = fmt.Sprintf("%s[%d]", path, i)
		}
		l.bad[path] = true
		l.fail(at, from.String(), text, "%v", err)
	}
	if wrong {
		return
	}
	root.FieldByIndex(o.index).Set(v)
	if root.Type() == l.root.Type() {
		l.cfg.origins[path] = from
	}
}

// setWorkers takes a whole list of workers.
func (l *loader) setWorkers(workers []Worker, from []Origin, whole Origin) {
	l.cfg.Workers, l.workers = workers, from
	l.cfg.origins["workers"] = whole
}

// resolveSecretFiles reads the files that hold keys. A key and its file are one
// setting: the stronger source wins, and both from one source contradict each
// other.
func (l *loader) resolveSecretFiles() {
	schema().walk(func(o *option) {
		if o.fileOf == "" {
			return
		}
		key := schema().find(o.fileOf)
		file, direct := l.root.FieldByIndex(o.index), l.root.FieldByIndex(key.index)
		fileFrom, directFrom := l.cfg.origins[o.path], l.cfg.origins[key.path]
		switch {
		case file.String() == "":
			return
		case !direct.IsZero() && directFrom.Kind > fileFrom.Kind:
			file.SetString("")
			delete(l.cfg.origins, o.path)
			return
		case !direct.IsZero() && directFrom.Kind == fileFrom.Kind:
			l.fail(o.path, fileFrom.String(), file.String(), "%s is set as well; set one of them", key.path)
			return
		}
		direct.SetZero()
		delete(l.cfg.origins, key.path)
		l.readSecret(o.path, fileFrom.String(), key, direct, file.String())
	})
	for i := range l.cfg.Workers {
		w := &l.cfg.Workers[i]
		if w.APIKeyFile == "" {
			continue
		}
		path := fmt.Sprintf("workers[%d].api_key_file", i+l.firstWorker)
		if w.APIKey != "" {
			l.fail(path, l.workers[i].String(), w.APIKeyFile, "api_key is set as well; set one of them")
			continue
		}
		key := schema().find("workers").structList.find("api_key")
		l.readSecret(path, l.workers[i].String(), key, reflect.ValueOf(&w.APIKey).Elem(), w.APIKeyFile)
	}
}

func (l *loader) readSecret(path, source string, key *option, v reflect.Value, file string) {
	data, err := l.readFile(file)
	if err != nil {
		l.fail(path, source, file, "cannot read it: %v", err)
		return
	}
	if len(data) > maxSecretBytes {
		l.fail(path, source, file, "is larger than %d bytes", maxSecretBytes)
		return
	}
	faults := 0
	wrong := func(format string, args ...any) {
		if faults++; faults <= maxLineFaults {
			l.fail(path, source, file, format, args...)
		}
	}
	n, no := 0, 0
	named := key.path == "auth.api_key"
	var names []string
	for line := range strings.Lines(string(data)) {
		no++
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if n++; n > 1 && key.typ == typeSecret {
			wrong("holds more than one line")
			break
		}
		if named {
			name, secret, err := namedKey(line)
			if err != nil {
				wrong("line %d %v", no, err)
				continue
			}
			if prefix := keyPrefix(name); prefix != "" {
				l.warn(path, source, "%q: line %d is read as NAME:KEY, and its name begins with %q as keys do: logs and metrics contain names, and clients must send only the part after the colon. Write :KEY if the whole line is the key", file, no, prefix)
			}
			names, line = append(names, name), secret
		}
		if err := key.setText(v, line); err != nil {
			wrong("line %d %v", no, err)
		}
	}
	if faults > maxLineFaults {
		l.fail(path, source, file, "has %d more lines that are wrong", faults-maxLineFaults)
	}
	if n == 0 {
		l.fail(path, source, file, "holds no key")
	}
	if named {
		l.cfg.KeyNames = names
	}
}

// maxLineFaults bounds how many wrong lines of one file of keys are reported.
const maxLineFaults = 20

// keyPrefix is what the name of a key begins with if that is how well-known kinds of
// keys begin, else "". The line is then hardly meant as NAME:KEY.
func keyPrefix(name string) string {
	lower := strings.ToLower(name)
	for _, p := range []string{"sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "gsk_", "hf_", "xai-", "ghp_", "glpat-", "akia"} {
		if strings.HasPrefix(lower, p) {
			return name[:len(p)]
		}
	}
	return ""
}

// namedKey takes a line of a file of keys apart: KEY, NAME:KEY, or :KEY for a key
// with a colon in it. The error does not repeat the line.
func namedKey(line string) (name, key string, err error) {
	before, after, colon := strings.Cut(line, ":")
	switch {
	case !colon || before != "" && !goodKeyName(before):
		return "", line, nil
	case strings.TrimSpace(after) == "":
		return "", "", errors.New("has a name and no key behind its colon; write NAME:KEY, or KEY")
	}
	return before, strings.TrimSpace(after), nil
}

// maxKeyName bounds the name of a key, in bytes.
const maxKeyName = 64

func goodKeyName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= maxKeyName
}

// fillIn gives settings that follow others their values.
func (l *loader) fillIn() {
	c := l.cfg
	if c.Routing.PrefillPolicy == "" {
		c.Routing.PrefillPolicy = c.Routing.Policy
	}
	if c.Routing.DecodePolicy == "" {
		c.Routing.DecodePolicy = c.Routing.Policy
	}
	if c.ConditionalDisagg.Enabled && c.ConditionalDisagg.PrefillBusy == nil {
		c.ConditionalDisagg.PrefillBusy = c.Admission.RouterQueueThreshold
	}
	if c.Admission.PrefillMaxInflight <= 0 {
		c.Admission.PrefillMaxInflight = -1
	}
	l.fillInCluster()
	for i := range c.Workers {
		if c.Workers[i].ModelID == "" {
			c.Workers[i].ModelID = c.Fleet.ModelID
		}
	}
	if c.Server.MaxPayloadSize > c.Server.MaxBufferedBytes {
		c.Server.MaxPayloadSize = c.Server.MaxBufferedBytes
	}
}

var (
	// userinfo reaches to the last @: a password may have a slash or an @ in it. The
	// scheme may have been forgotten.
	userinfo = regexp.MustCompile(`(?s)(//|^[^/@]+:).*@`)
	keyGiven = regexp.MustCompile(`(^|,)(api_key=)[^,]*`)
	urlQuery = regexp.MustCompile(`(?s)^([^?#]*://[^?#]*[?#]).+`)
)

// redactWorker hides in a message what of a worker may be a secret: user and password of its
// URL, the query, where some servers expect a token, and a key that stands where no key may.
func redactWorker(s string) string {
	s = userinfo.ReplaceAllStringFunc(s, func(found string) string {
		if before, _, ok := strings.Cut(found, "//"); ok {
			return before + "//" + hidden + "@"
		}
		return hidden + "@"
	})
	s = keyGiven.ReplaceAllString(s, "${1}${2}"+hidden)
	return urlQuery.ReplaceAllString(s, "${1}"+hidden)
}
