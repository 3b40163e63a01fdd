// Package features is the floor of the features: what happens to volumes besides
// being made for a claim and removed after it. Each package below is one feature, mostly
// one controller on a worker.Loop that lives for one term. A feature reads and writes its
// own objects and volumes; it knows neither the hub nor another feature, and package app
// starts it.
//
// To add one: write a package with New(Options) and Run(ctx), whose Do makes one attempt
// at a key; let it wait for triggers of the term's parking.Board instead of polling; and
// make it in the list of newTerm in app/term.go. If it has ClaimChanged or VolumeChanged, it
// hears of these objects.
package features
