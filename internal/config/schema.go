package config

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/suggest"
)

// EnvPrefix starts the name of every environment variable sluice reads.
const EnvPrefix = "SLUICE_"

// option is one setting: a field of a group, with what its tags say.
type option struct {
	path       string // "server.port"
	key        string // "port"
	flag       string // "port", or "" where there is none
	env        string // "SLUICE_PORT", or ""
	index      []int  // of the field, from the root of its schema
	typ        reflect.Type
	def        string // text of the default, "" for the zero value
	defDoc     string // what the reference says in place of the default
	help       string
	unit       string // "secs", "ms", "bytes" or ""
	choices    []string
	lo, hi     float64
	whole      bool
	must       string // what is allowed, in place of the general words
	aliases    []string
	onlyWith   string
	fileOf     string // path of the setting whose file this is
	required   bool
	nullOK     bool   // null in a file is the same as no key
	exponents  bool   // numbers may have an exponent
	reload     bool   // takes effect without a restart
	structList *group // schema of an element, for a list of structs
}

// group is a mapping of the file: settings and groups in the order of their
// fields.
type group struct {
	path    string
	key     string
	help    string
	options []*option
	groups  []*group
	order   []any // *option or *group
}

var schema = sync.OnceValue(func() *group {
	g := buildGroup(reflect.TypeFor[Config](), "", nil)
	return g
})

func buildGroup(t reflect.Type, path string, index []int) *group {
	g := &group{path: path}
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("yaml")
		if !f.IsExported() || key == "-" || key == "" {
			continue
		}
		fieldIndex := append(append([]int(nil), index...), i)
		fieldPath := key
		if path != "" {
			fieldPath = path + "." + key
		}
		if f.Type.Kind() == reflect.Struct {
			sub := buildGroup(f.Type, fieldPath, fieldIndex)
			sub.key, sub.help = key, f.Tag.Get("help")
			g.groups = append(g.groups, sub)
			g.order = append(g.order, sub)
			continue
		}
		o := buildOption(f, key, fieldPath, fieldIndex)
		g.options = append(g.options, o)
		g.order = append(g.order, o)
	}
	return g
}

func buildOption(f reflect.StructField, key, path string, index []int) *option {
	tag := f.Tag
	o := &option{
		path: path, key: key, index: index, typ: f.Type,
		def: tag.Get("default"), defDoc: tag.Get("defaultdoc"), help: tag.Get("help"), unit: tag.Get("unit"),
		whole: tag.Get("whole") == "true", must: tag.Get("must"), onlyWith: tag.Get("onlywith"),
		required: tag.Get("required") == "true", nullOK: tag.Get("null") == "true",
		exponents: tag.Get("exponents") == "true", reload: tag.Get("reload") == "true",
		lo: math.Inf(-1), hi: math.Inf(1),
	}
	if tag.Get("flag") != "-" {
		o.flag = strings.ReplaceAll(key, "_", "-")
		o.env = envName(o.flag)
	}
	if c := tag.Get("choices"); c != "" {
		o.choices = strings.Split(c, "|")
	}
	if a := tag.Get("alias"); a != "" {
		o.aliases = strings.Split(a, "|")
	}
	if of := tag.Get("fileof"); of != "" {
		o.fileOf = strings.TrimSuffix(path, key) + of
	}
	if r := tag.Get("range"); r != "" {
		lo, hi, ok := strings.Cut(r, ":")
		if !ok {
			panic("BUG: range of " + path)
		}
		o.lo, o.hi = bound(lo, o.lo), bound(hi, o.hi)
	}
	if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
		o.structList = buildGroup(f.Type.Elem(), "", nil)
	}
	return o
}

func bound(s string, none float64) float64 {
	if s == "" {
		return none
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		panic("BUG: range " + s)
	}
	return f
}

func envName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// walk calls f for every setting of g and the groups in it, in order.
func (g *group) walk(f func(*option)) {
	for _, e := range g.order {
		switch e := e.(type) {
		case *option:
			f(e)
		case *group:
			e.walk(f)
		}
	}
}

// find returns the setting with the path, which must exist.
func (g *group) find(path string) *option {
	var found *option
	g.walk(func(o *option) {
		if o.path == path {
			found = o
		}
	})
	if found == nil {
		panic("BUG: no setting " + path)
	}
	return found
}

func (g *group) keys() []string {
	var keys []string
	for _, o := range g.options {
		keys = append(keys, o.key)
	}
	for _, s := range g.groups {
		keys = append(keys, s.key)
	}
	return keys
}

// setDefaults sets every setting of the struct root to its default.
func (g *group) setDefaults(root reflect.Value) {
	g.walk(func(o *option) {
		if o.def == "" {
			return
		}
		if err := o.setText(root.FieldByIndex(o.index), o.def); err != nil {
			panic(fmt.Sprintf("BUG: default of %s: %v", o.path, err))
		}
	})
}

var (
	typeSecret   = reflect.TypeFor[Secret]()
	typeSecrets  = reflect.TypeFor[[]Secret]()
	typeStrings  = reflect.TypeFor[[]string]()
	typeLabels   = reflect.TypeFor[map[string]string]()
	typeDNSNames = reflect.TypeFor[[]DNSName]()
	typePaths    = reflect.TypeFor[[]TokenizerPath]()
	typeAliases  = reflect.TypeFor[ModelAliases]()
	typeDuration = reflect.TypeFor[time.Duration]()
	typeSelector = reflect.TypeFor[LabelSelector]()
	typeStoreURL = reflect.TypeFor[StoreURL]()
)

func (o *option) secret() bool { return o.typ == typeSecret || o.typ == typeSecrets }

// repeats reports whether a flag of it adds a value to those before.
func (o *option) repeats() bool {
	return o.typ == typeSecrets || o.typ == typeAliases || o.typ == typeDNSNames || o.typ == typePaths
}

// zeroAllowed reports whether the zero value can be set, or is the default.
func (o *option) zeroAllowed() bool {
	switch {
	case o.def == "":
		return true
	case len(o.choices) > 0:
		return false
	case o.typ.Kind() == reflect.String:
		return false
	}
	return o.lo <= 0
}

// isText reports whether values are text, so that a file may write them in
// quotes or like a number.
func (o *option) isText() bool {
	return o.typ.Kind() == reflect.String || o.typ == typeSecrets || o.typ == typeStrings || o.typ == typeDNSNames || o.typ == typePaths || reflect.PointerTo(o.typ).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// setText sets v from the text of one value. A list gets it added. The error
// says what is allowed and does not repeat the value.
func (o *option) setText(v reflect.Value, text string) error {
	err := o.parse(v, text)
	if err != nil && o.must != "" {
		return fmt.Errorf("must be %s", o.must)
	}
	return err
}

func (o *option) parse(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch {
	case o.secret():
		return o.parseSecret(v, text)
	case v.Type() == typeDuration:
		return o.parseDuration(v, text)
	case o.unit == "bytes":
		n, err := parseBytes(text)
		if err != nil {
			return err
		}
		v.SetInt(n)
		return o.inRange(float64(n))
	}
	switch v.Kind() {
	case reflect.Pointer: // nil is none
		p := reflect.New(v.Type().Elem())
		if err := o.parse(p.Elem(), text); err != nil {
			return err
		}
		v.Set(p)
		return nil
	case reflect.Map:
		return o.parseAlias(v, text)
	case reflect.Slice:
		item := reflect.New(v.Type().Elem()).Elem()
		if err := o.parse(item, text); err != nil {
			return err
		}
		v.Set(reflect.Append(v, item))
		return nil
	case reflect.String:
		return o.parseString(v, text)
	case reflect.Bool:
		switch text {
		case "true":
			v.SetBool(true)
		case "false":
			v.SetBool(false)
		default:
			return fmt.Errorf("must be true or false")
		}
		return nil
	case reflect.Int, reflect.Int64:
		n, err := parseWhole(text)
		if err != nil {
			return err
		}
		if o.choices != nil && !slices.Contains(o.choices, text) {
			return choiceError(o, text)
		}
		if err := o.inRange(float64(n)); err != nil {
			return err
		}
		v.SetInt(n)
		return nil
	case reflect.Float64:
		f, err := parseDecimal(text)
		if err != nil && o.exponents {
			f, err = parseExponent(text)
		}
		if err != nil {
			return err
		}
		if err := o.inRange(f); err != nil {
			return err
		}
		v.SetFloat(f)
		return nil
	}
	panic("BUG: type of " + o.path)
}

func (o *option) parseSecret(v reflect.Value, text string) error {
	if err := checkSecret(text); err != nil {
		return err
	}
	if o.typ == typeSecrets {
		v.Set(reflect.Append(v, reflect.ValueOf(Secret(text))))
	} else {
		v.SetString(text)
	}
	return nil
}

// checkSecret refuses what cannot be the token of an Authorization header.
func checkSecret(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("is empty")
	case s == hidden:
		return fmt.Errorf("is the placeholder for a secret in a printed configuration, not a key")
	case len(s) > 4096:
		return fmt.Errorf("is longer than 4096 bytes")
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return fmt.Errorf("has a space or another character that a header cannot carry")
		}
	}
	return nil
}

func (o *option) parseString(v reflect.Value, text string) error {
	if len(text) > 4096 {
		return fmt.Errorf("is longer than 4096 bytes")
	}
	for i := range len(text) {
		if text[i] < ' ' || text[i] == 0x7f {
			return fmt.Errorf("has a control character")
		}
	}
	if o.choices != nil {
		if o.key == "log_level" && text == "warning" {
			text = "warn" // its name in Python and in SMG
		}
		if !slices.Contains(o.choices, text) {
			return choiceError(o, text)
		}
	}
	v.SetString(text)
	return nil
}

// notYet are policies of the SGLang model gateway that users may expect here.
var notYet = map[string]bool{"bucket": true, "manual": true, "passthrough": true}

func choiceError(o *option, text string) error {
	list := strings.Join(o.choices, ", ")
	if o.typ == reflect.TypeFor[Policy]() && notYet[text] {
		return fmt.Errorf("is not available yet; use one of %s", list)
	}
	if n := suggest.Nearest(strings.ToLower(text), o.choices); n != "" {
		return fmt.Errorf("must be one of %s; did you mean %s?", list, n)
	}
	return fmt.Errorf("must be one of %s", list)
}

func (o *option) parseDuration(v reflect.Value, text string) error {
	scale, unit := time.Second, "seconds"
	if o.unit == "ms" {
		scale, unit = time.Millisecond, "milliseconds"
	}
	var f float64
	if o.whole {
		n, err := parseWhole(text)
		if err != nil {
			return fmt.Errorf("must be a whole number of %s", unit)
		}
		f = float64(n)
	} else {
		var err error
		if f, err = parseDecimal(text); err != nil {
			if d, derr := time.ParseDuration(text); derr == nil && d >= 0 {
				return fmt.Errorf("must be a number of %s, without a unit: write %s", unit, formatDecimal(float64(d)/float64(scale)))
			}
			return fmt.Errorf("must be a number of %s", unit)
		}
	}
	const most = 1e9 // keeps every sum of two far from overflow
	if f < 0 || f > most {
		return fmt.Errorf("must be from 0 to %d %s", int64(most), unit)
	}
	if err := o.inRange(f); err != nil {
		return err
	}
	v.SetInt(int64(math.Round(f * float64(scale))))
	return nil
}

func (o *option) inRange(f float64) error {
	if f >= o.lo && f <= o.hi {
		return nil
	}
	unit := map[string]string{"secs": " seconds", "ms": " milliseconds", "bytes": " bytes"}[o.unit]
	switch {
	case math.IsInf(o.hi, 1):
		return fmt.Errorf("must be %s%s or more", formatDecimal(o.lo), unit)
	case math.IsInf(o.lo, -1):
		return fmt.Errorf("must be %s%s or less", formatDecimal(o.hi), unit)
	}
	err := fmt.Errorf("must be from %s to %s%s", formatDecimal(o.lo), formatDecimal(o.hi), unit)
	if o.hi == 1 && unit == "" && f >= 10 && f <= 100 && o.typ != reflect.TypeFor[int]() {
		err = fmt.Errorf("%w; write %s for %s %%", err, formatDecimal(f/100), formatDecimal(f))
	}
	return err
}

func parseWhole(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil && strings.HasPrefix(s, "+") {
		err = strconv.ErrSyntax
	}
	// One bound for all keeps sums and products in range on every path.
	if err != nil || n > 1<<40 || n < -1<<40 {
		return 0, fmt.Errorf("must be a whole number")
	}
	return n, nil
}

// parseDecimal reads plain decimals: no exponents, hexadecimals, infinities.
func parseDecimal(s string) (float64, error) {
	digits := strings.TrimPrefix(s, "-")
	if digits == "" || strings.Trim(digits, "0123456789.") != "" {
		return 0, fmt.Errorf("must be a number")
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("must be a number")
	}
	return f, nil
}

// parseExponent reads decimals with an exponent, as YAML and JSON have them.
func parseExponent(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || strings.Trim(s, "0123456789.eE+-") != "" {
		return 0, fmt.Errorf("must be a number")
	}
	return f, nil
}

func formatDecimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

var byteUnits = []struct {
	suffix string
	size   int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}

func parseBytes(s string) (int64, error) {
	digits, size := s, int64(1)
	for _, u := range byteUnits {
		if d, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, size = d, u.size
		}
	}
	n, err := parseWhole(digits)
	if err != nil || n < 0 || n > (1<<50)/size {
		return 0, fmt.Errorf("must be a number of bytes, or of KiB, MiB or GiB: 1048576 or 1MiB")
	}
	return n * size, nil
}

func formatBytes(n int64) string {
	for i := len(byteUnits) - 1; i >= 0; i-- {
		if u := byteUnits[i]; n >= u.size && n%u.size == 0 {
			return strconv.FormatInt(n/u.size, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

// text is the inverse of setText for one value that is not a list. None is "".
func (o *option) text(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	switch {
	case v.Type() == typeDuration:
		scale := time.Second
		if o.unit == "ms" {
			scale = time.Millisecond
		}
		return formatDecimal(float64(v.Int()) / float64(scale))
	case o.unit == "bytes":
		return formatBytes(v.Int())
	case v.Kind() == reflect.Float64:
		return formatDecimal(v.Float())
	}
	return fmt.Sprint(v.Interface())
}
