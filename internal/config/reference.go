package config

import (
	"bufio"
	"fmt"
	"io"
	"reflect"
	"strings"
)

const referenceHead = `# Configuration

<!-- Written by "make docs" from the fields in internal/config/config.go. Change them there. -->

Every setting can be given in three ways:

- as a **flag** of ` + "`sluice serve`" + `: ` + "`--prefill-queue-size 50`" + `;
- as an **environment variable**: ` + "`SLUICE_`" + ` and the flag's name in capitals, with ` + "`_`" + ` for ` + "`-`" + `: ` + "`SLUICE_PREFILL_QUEUE_SIZE=50`" + `;
- in a **YAML file** named by ` + "`--config`" + ` (or ` + "`SLUICE_CONFIG`" + `), under the headings below: ` + "`admission: {prefill_queue_size: 50}`" + `.

A flag wins over the environment, which wins over the file, which wins over the default: setting by setting. A list is one setting and is replaced whole.

` + "`sluice check-config FILE`" + ` prints every mistake with its place, or the configuration that would be in force, with the source of each setting and with secrets hidden.

Rules that hold for all settings:

- Nothing is guessed. An unknown key, a number in quotes, a key set twice, a second YAML document or a value out of range is an error, and sluice does not start. All errors are reported at once.
- An unknown ` + "`SLUICE_`" + ` variable is a warning. An empty variable counts as not set. Kubernetes sets variables like ` + "`SLUICE_PORT=tcp://10.0.0.1:30000`" + ` for a service named sluice; values of that shape are ignored with a warning.
- Times are plain numbers in the unit the name or the table gives; fractions are allowed where the text does not say otherwise. Sizes are bytes, or a number with KiB, MiB or GiB.
- A key can be given in a file (` + "`--api-key-file`" + ` instead of ` + "`--api-key`" + `), which keeps it out of the process list. Where both are given, the stronger source wins; both in one source is an error.
- Boolean flags stand alone (` + "`--log-json`" + `) or take ` + "`=true`" + ` or ` + "`=false`" + `.
`

const referenceWorkers = `
On the command line the list is made by these flags, which add up in their order:

| Flag | Environment | Meaning |
|---|---|---|
`

const referenceWorkersEnd = `
In the environment workers are separated by commas: ` + "`SLUICE_PREFILL=\"http://10.0.0.1:30000 8998, http://10.0.0.2:30000 none\"`" + `.

In the file it is a list of mappings:

` + "```yaml" + `
fleet:
  pd_disaggregation: true
workers:
  - url: http://10.0.0.1:30000
    worker_type: prefill
    bootstrap_port: 8998
  - url: https://decode-0.example:30000
    worker_type: decode
    tls:
      ca_file: /etc/sluice/ca.pem
` + "```" + `

A URL has one spelling: scheme and host in lower case, an IPv6 address in brackets and in its short form, no default port, no trailing slash. The same worker twice is an error.

| Key | Default | Meaning |
|---|---|---|
`

// WriteReference writes the reference of all settings, in Markdown.
func WriteReference(w io.Writer) error {
	b := bufio.NewWriter(w)
	write := func(format string, args ...any) { _, _ = fmt.Fprintf(b, format, args...) }
	write("%s", referenceHead)
	for _, e := range schema().order {
		switch e := e.(type) {
		case *group:
			write("\n## %s\n\n%s\n\n| Key | Flag | Default | Meaning |\n|---|---|---|---|\n", e.key, e.help)
			for _, o := range e.options {
				if o.onlyWith == "never" {
					write("| `%s` | `--%s` | | %s |\n", o.key, o.flag, o.help)
					continue
				}
				flag := ""
				if o.flag != "" {
					flag = "`--" + o.flag + "`"
				}
				write("| `%s` | %s | %s | %s |\n", o.key, flag, o.referenceDefault(), o.referenceHelp())
			}
			if e.path == "admission" {
				writeClassReference(write)
			}
		case *option:
			if e.structList == nil {
				write("\n## %s\n\n%s\n\n| Key | Flag | Default |\n|---|---|---|\n| `%s` | `--%s` | %s |\n", e.key, e.referenceHelp(), e.key, e.flag, e.referenceDefault())
				continue
			}
			write("\n## %s\n\n%s\n%s", e.key, e.help, referenceWorkers)
			for _, f := range workerFlags {
				write("| `--%s %s` | `%s` | %s |\n", f.name, strings.ReplaceAll(f.words, "|", `\|`), envName(f.name), f.help)
			}
			write("%s", referenceWorkersEnd)
			e.structList.walk(func(o *option) {
				write("| `%s` | %s | %s |\n", o.path, o.referenceDefault(), o.referenceHelp())
			})
		}
	}
	return b.Flush()
}

const referenceClasses = `
### Policy classes

A class is a queue of its own, with thresholds that say when its requests wait, an order, a share and limits. Classes stand in a file of their own (` + "`--router-policy-config FILE`" + `), YAML or JSON, or with the same keys in the ` + "`admission`" + ` group; the file wins over the group when a flag or the environment names it, and both in one file is an error. The schema is that of the router policy file of NVIDIA Dynamo, and an existing file loads unchanged: a key of its ` + "`router`" + `, ` + "`worker_selection`" + ` and ` + "`request_classifier`" + ` groups that has no meaning here makes a warning, an unknown one is an error.

` + "```yaml" + `
default_policy_family: regular
uncached_isl_buckets:
  - {min_tokens: 0, bucket: short}
  - {min_tokens: 8192, bucket: long}
policy_classes:
  - name: regular_short
    policy_family: regular
    cache_bucket: short
    quantum: 512
    prefill_busy_threshold_frac: 1.0
    decode_busy_threshold_frac: 0.9
  - name: regular_long
    policy_family: regular
    cache_bucket: long
    queue_policy: wspt
    quantum: 128
    prefill_busy_threshold_frac: 0.5
    decode_busy_threshold_frac: 0.8
    request_queue_limit_per_worker: 64
  - name: probe          # reached by its name alone
    quantum: 1
    request_queue_limit_per_worker: 0
models:
  org/other-model:       # replaces the profile above whole
    default_policy_family: all
    uncached_isl_buckets: [{min_tokens: 0, bucket: any}]
    policy_classes:
      - {name: all, policy_family: all, cache_bucket: any, quantum: 1}
` + "```" + `

A request names its class or family in the header ` + "`x-sluice-class`" + ` (or ` + "`x-dynamo-meta-policy-class`" + `).

| Key | Default | Meaning |
|---|---|---|
`

const referenceReload = `
### Changes at run time

sluice looks at the configuration file and the class file every few seconds, on SIGHUP and on ` + "`POST /admission/reload`" + `. A change of contents that is valid takes effect as a whole; one that is not is logged and shown, and what was in force stays. These settings take effect without a restart: the classes, and

`

func writeClassReference(write func(format string, args ...any)) {
	write("%s", referenceClasses)
	row := func(prefix string, o *option) {
		write("| `%s` | %s | %s |\n", prefix+o.path, o.referenceDefault(), o.referenceHelp())
	}
	for _, o := range profileSchema().options {
		row("", o)
		if o.structList != nil {
			o.structList.walk(func(e *option) { row(o.path+"[].", e) })
		}
	}
	write("| `models` | | Profiles for models, by name: each holds the three keys above and replaces them whole. |\n")
	write("%s", referenceReload)
	schema().walk(func(o *option) {
		if o.reload {
			write("- `%s`\n", o.path)
		}
	})
	write("\nA change of another setting is a warning that it needs a restart.\n")
}

func (o *option) referenceDefault() string {
	switch {
	case o.required:
		return "(required)"
	case o.defDoc != "":
		if !strings.Contains(o.defDoc, " ") { // another setting
			return "`" + o.defDoc + "`"
		}
		return o.defDoc
	case o.def == "":
		if o.typ.Kind() == reflect.Bool {
			return "`false`"
		}
		return ""
	}
	if unit := map[string]string{"secs": " s", "ms": " ms"}[o.unit]; unit != "" {
		return "`" + o.def + "`" + unit
	}
	return "`" + o.def + "`"
}

func (o *option) referenceHelp() string {
	s := o.help
	if o.choices != nil {
		s += " One of `" + strings.Join(o.choices, "`, `") + "`."
	}
	if o.whole {
		s += " Whole seconds."
	}
	for _, a := range o.aliases {
		s += " `--" + a + "` is the same."
	}
	return s
}
