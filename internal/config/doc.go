// Package config is the one schema of sluice's settings: what an option is
// called in a YAML file, as a flag and in the environment, what it defaults to,
// which values it takes, and the text of its reference.
//
// Goals: every setting is declared once, as a field of [Config] with its tags,
// and everything else (strict decoding, flags, environment, defaults, the
// effective configuration, docs/configuration.md) follows from it by
// reflection; every mistake is reported at once, each with its path, its source
// and its value; secrets are never printed.
//
// Non-goals: knowing the components that read the settings. The types of theirs
// here are the classes, which are configuration themselves, and the URL of a store.
//
// # Life of a configuration
//
//  1. [ExpandArgs] gives the options that take several words
//     (--prefill URL PORT, --worker-urls A B) a form that flag parsers read.
//  2. [AddFlags] declares a flag for each setting; a parser (cobra, or [Load]
//     itself) records the raw words.
//  3. [Load] or [LoadFlags] starts from the defaults, lays the file over them,
//     then the environment, then the flags, setting by setting, and checks the
//     whole. It returns all errors, or a Config that nobody changes any more.
//
// The policy classes are read by the same machinery from a schema of their own
// (classfile.go), whether they stand in a class file or in the admission group;
// what makes them valid is the gate's to say ([admission.Classes.Validate]).
//
// A [Reloader] loads all of it again when the files change and hands on what can
// change without a restart.
//
// A list (workers) is one setting: the source that wins replaces it whole.
//
// # Adding an option
//
// Add a field with its tags to a group in config.go, use it, run make docs.
// The tags:
//
//	yaml        the key; the flag is the key with dashes, the variable is
//	            SLUICE_ and the key in capitals
//	flag        "-" for a setting that has neither
//	alias       other names of the flag
//	default     as it would be written in the file
//	defaultdoc  what the reference says in place of it, where another setting
//	            or a worker decides
//	help        the reference's text
//	unit        secs, ms or bytes
//	whole       "true" refuses fractions of a duration
//	range       "min:max", either may be empty
//	choices     the allowed values, separated by |
//	must        what is allowed, in place of the general words of an error
//	required    "true" for a key that an element of a list must have
//	fileof      the key whose value stands in the file named here
//	onlywith    when the setting means anything: admission, classes, pd,
//	            threshold, conditional, preferred, discovery_file, discovery_dns,
//	            kubernetes, cluster, never
//	reload      "true" where a change takes effect without a restart
//	null        "true" where null in a file is the same as no key
//	exponents   "true" for numbers that may have an exponent
package config
