package config

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sluice-router/sluice/internal/suggest"
)

// workerFlags are the flags that make up the list of workers.
var workerFlags = []struct {
	name  string
	typ   WorkerType
	words string // how many words one use takes, for the help
	help  string
}{
	{"worker-urls", WorkerRegular, "URL ...", "Workers that run whole requests: one or more URLs, repeatable."},
	{"prefill", WorkerPrefill, "URL [PORT|none]", "A prefill worker and the port at which decode finds it (SGLang's --disaggregation-bootstrap-port): a number, or none to send null. Without the second word the worker is asked, and 8998 is taken where it does not tell. Repeatable."},
	{"decode", WorkerDecode, "URL", "A decode worker. Repeatable."},
}

// Flags holds the raw words a parser found. Values are read, and refused, by
// [LoadFlags], so that all mistakes are reported together.
type Flags struct {
	config  *rawFlag
	options map[string]*rawFlag // by path
	foreign []*rawFlag          // as in foreignFlags
	workers []workerWord        // in the order of the command line
}

// workerWord is one use of a worker flag.
type workerWord struct {
	flag int // index in workerFlags
	text string
}

// rawFlag is a pflag.Value that keeps what it is given.
type rawFlag struct {
	def, typ string
	values   []string
	add      func(string)
}

func (r *rawFlag) String() string { return r.def }
func (r *rawFlag) Type() string   { return r.typ }
func (r *rawFlag) set() bool      { return len(r.values) > 0 }
func (r *rawFlag) last() string   { return r.values[len(r.values)-1] }

func (r *rawFlag) Set(s string) error {
	if r.add != nil {
		r.add(s)
	}
	r.values = append(r.values, s)
	return nil
}

// AddFlags declares a flag for every setting.
func AddFlags(fs *pflag.FlagSet) *Flags {
	f := &Flags{options: map[string]*rawFlag{}}
	f.config = &rawFlag{typ: "FILE"}
	fs.Var(f.config, "config", "YAML file with the configuration. A flag wins over the environment, which wins over the file.")
	for i, w := range workerFlags {
		fs.Var(&rawFlag{typ: w.words, add: func(s string) {
			f.workers = append(f.workers, workerWord{i, s})
		}}, w.name, w.help)
	}
	f.addForeignFlags(fs)
	schema().walk(func(o *option) {
		if o.flag == "" {
			return
		}
		r := &rawFlag{def: o.def, typ: o.flagType()}
		f.options[o.path] = r
		for _, name := range append([]string{o.flag}, o.aliases...) {
			added := fs.VarPF(r, name, "", o.flagHelp())
			if r.typ == "bool" {
				added.NoOptDefVal = "true"
			}
			added.Hidden = name != o.flag || o.onlyWith == "never"
		}
	})
	return f
}

// flagHelp is the help with the values there are. Quotes would give the flag's
// value another name.
func (o *option) flagHelp() string {
	if o.choices == nil {
		return o.help
	}
	return o.help + " One of " + strings.Join(o.choices, ", ") + "."
}

func (o *option) flagType() string {
	switch {
	case o.typ.Kind() == reflect.Bool:
		return "bool"
	case o.fileOf != "" || o.path == policyConfigPath || o.path == "discovery.discovery_file" || o.path == "discovery.workers_state" ||
		o.path == "kubernetes.kubeconfig" || strings.HasPrefix(o.path, "cluster.cluster_tls_"):
		return "FILE"
	case o.unit != "":
		return strings.ToUpper(o.unit)
	case o.isNumber():
		return "NUMBER"
	case o.secret():
		return "KEY"
	case o.typ == typeStoreURL:
		return "URL"
	case o.path == "cluster.cluster_listen", o.path == "cluster.cluster_advertise":
		return "HOST:PORT"
	case o.typ == typeAliases:
		return "ALIAS=MODEL"
	case o.typ == typeSelector:
		return "SELECTOR"
	case o.typ == typeDNSNames:
		return "NAME:PORT[,KEY=VALUE...]"
	case o.typ == typePaths:
		return "[MODEL=]PATH"
	}
	return "TEXT"
}

func (o *option) isNumber() bool {
	t := o.typ
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int64, reflect.Float64:
		return true
	}
	return false
}

// FlagChoices returns the allowed values of each flag that has a fixed set of
// them, for shell completion.
func FlagChoices() map[string][]string {
	m := map[string][]string{}
	schema().walk(func(o *option) {
		if o.flag != "" && o.choices != nil {
			m[o.flag] = o.choices
		}
	})
	return m
}

// FileFlags returns the flags whose value is the path of a file, for shell
// completion.
func FileFlags() []string {
	names := []string{"config"}
	schema().walk(func(o *option) {
		if o.flag != "" && o.flagType() == "FILE" {
			names = append(names, o.flag)
		}
	})
	return names
}

// ExpandArgs joins the words of flags that take several, since flag parsers
// give a flag one: "--prefill URL 8998" becomes "--prefill=URL 8998" in one
// word, and "--worker-urls A B" or "--selector a=b c=d" likewise. Words after "--" are left alone.
func ExpandArgs(args []string) []string {
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(out, args[i:]...)
		}
		most := extraWords(arg)
		if most == 0 {
			out = append(out, arg)
			continue
		}
		var words []string
		name, first, hasFirst := strings.Cut(arg, "=")
		if hasFirst {
			words = append(words, first)
		} else {
			most++
		}
		for most > 0 && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			i++
			most--
			words = append(words, args[i])
		}
		if len(words) == 0 {
			out = append(out, arg) // the parser says what is missing
			continue
		}
		separator := " "
		if slices.Contains(selectorFlags, name) && areSelectors(words) {
			separator = ","
		}
		out = append(out, name+"="+strings.Join(words, separator))
	}
	return out
}

// selectorFlags take requirements one by one.
var selectorFlags = []string{"--selector", "--prefill-selector", "--decode-selector"}

// extraWords is how many words a flag takes after its first.
func extraWords(arg string) int {
	name, _, _ := strings.Cut(arg, "=")
	switch name {
	case "--prefill":
		return 1
	case "--worker-urls", "--decode":
		return maxWorkers
	}
	if name == "--cache-boundaries" || slices.Contains(selectorFlags, name) {
		return maxSelectorWords
	}
	return 0
}

func (l *loader) applyFlags(f *Flags) {
	schema().walk(func(o *option) {
		r := f.options[o.path]
		if r == nil || !r.set() {
			return
		}
		from := Origin{Kind: FromFlag, Name: o.flag}
		if o.repeats() {
			l.set(l.root, "", o, from, r.values...)
		} else if o.typ == typeSelector {
			l.set(l.root, "", o, from, joinSelectors(r.values))
		} else {
			l.set(l.root, "", o, from, r.last())
		}
	})
	if len(f.workers) == 0 {
		return
	}
	var b workerBuilder
	for _, w := range f.workers {
		from := Origin{Kind: FromFlag, Name: workerFlags[w.flag].name}
		l.addWorkerWords(&b, w.flag, strings.Fields(w.text), from)
	}
	l.setWorkers(b.workers, b.from, b.from0())
}

// workerBuilder gathers the workers of flags or of the environment.
type workerBuilder struct {
	workers []Worker
	from    []Origin
}

func (b *workerBuilder) from0() Origin {
	if len(b.from) == 0 {
		return Origin{}
	}
	return b.from[0]
}

// addWorkerWords adds the workers that one use of a worker flag names.
func (l *loader) addWorkerWords(b *workerBuilder, flag int, words []string, from Origin) {
	w := workerFlags[flag]
	path := func() string { return fmt.Sprintf("workers[%d]", len(b.workers)) }
	if len(words) == 0 {
		l.fail(path()+".url", from.String(), "", "must be %s", w.words)
		return
	}
	if w.typ != WorkerPrefill {
		for _, url := range words {
			b.workers = append(b.workers, Worker{URL: url, Type: w.typ})
			b.from = append(b.from, from)
		}
		return
	}
	p := Worker{URL: words[0], Type: WorkerPrefill}
	switch {
	case len(words) > 2:
		l.fail(path(), from.String(), strings.Join(words, " "), "must be %s", w.words)
		return
	case len(words) == 2:
		if err := p.BootstrapPort.UnmarshalText([]byte(words[1])); err != nil {
			if strings.Contains(words[1], "://") {
				err = fmt.Errorf("must be a bootstrap port or none; for another worker repeat --prefill")
			}
			l.fail(path()+".bootstrap_port", from.String(), words[1], "%v", err)
		}
	}
	b.workers = append(b.workers, p)
	b.from = append(b.from, from)
}

var unknownFlag = regexp.MustCompile(`^unknown flag: --(\S+)$`)

// ExplainFlagError adds the flag that was probably meant to a parser's error about
// one that fs does not have, and reports all others among args that fs does not have,
// one a line: the parser stops at the first.
func ExplainFlagError(err error, fs *pflag.FlagSet, args []string) error {
	m := unknownFlag.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	var names []string
	fs.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	first, _, _ := strings.Cut(m[1], "=")
	all := []string{first}
	for _, name := range unknownFlags(args, fs) {
		if !slices.Contains(all, name) && len(all) < maxErrors {
			all = append(all, name)
		}
	}
	errs := make([]error, len(all))
	for i, name := range all {
		errs[i] = fmt.Errorf("unknown flag: --%s", name)
		if n := suggest.Nearest(strings.ReplaceAll(name, "_", "-"), names); n != "" {
			errs[i] = fmt.Errorf("%w; did you mean --%s?", errs[i], n)
		}
	}
	return errors.Join(errs...)
}

// unknownFlags are the flags among args that fs does not have. The word behind one is
// taken for its value where it does not begin with a dash.
func unknownFlags(args []string, fs *pflag.FlagSet) []string {
	var unknown []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			break
		}
		name, ok := strings.CutPrefix(arg, "--")
		if !ok {
			continue
		}
		name, _, valued := strings.Cut(name, "=")
		switch f := fs.Lookup(name); {
		case name == "help" || name == "version":
		case f == nil:
			unknown = append(unknown, name)
		case !valued && f.NoOptDefVal == "":
			i++ // its value
		}
	}
	return unknown
}
